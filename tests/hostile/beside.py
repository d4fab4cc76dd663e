"""beside.py serve ADDRESS PORT | ask ADDRESS PORT SECONDS ATTACKER_PID: an honest connection beside an attack.

serve   a connection that begins with "e" has its bytes sent back; one that begins with "g" is sent bytes without end
ask     an echo without pause, every byte compared, for SECONDS; meanwhile the attacker is stopped and continued, half a
        second each. "quiet N attacked M": bytes that came back in the half seconds of each kind; or "wrong", with status 1"""
import os, signal, socket, sys, threading, time

CHUNK = 32768
pattern = bytes(i * 31 + (i >> 8) & 255 for i in range(65536 + CHUNK))


def serve_one(connection):
    try:
        kind = connection.recv(1)
        while kind == b"g":
            connection.sendall(pattern)
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        pass
    finally:
        connection.close()


def serve(address, port):
    listener = socket.create_server((address, port), backlog=128)
    print("listening", flush=True)
    while True:
        threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()


def ask(address, port, seconds, attacker):
    connection = socket.create_connection((address, port), timeout=20)
    connection.sendall(b"e")
    moved, attacked, sent = [0, 0], 0, 0
    end = time.monotonic() + seconds
    turn = time.monotonic() + 0.5
    while time.monotonic() < end:
        chunk = pattern[sent % 65536:][:CHUNK]
        connection.sendall(chunk)
        back = b""
        while len(back) < len(chunk):
            part = connection.recv(len(chunk) - len(back))
            if not part:
                sys.exit("wrong: the connection has ended")
            back += part
        if back != chunk:
            sys.exit("wrong: a byte differs")
        sent += len(chunk)
        moved[attacked] += len(chunk)
        if time.monotonic() >= turn:
            attacked ^= 1
            os.kill(attacker, signal.SIGCONT if attacked else signal.SIGSTOP)
            turn = time.monotonic() + 0.5
    os.kill(attacker, signal.SIGCONT)
    print("quiet %d attacked %d" % tuple(moved))


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
os.kill(int(sys.argv[5]), signal.SIGSTOP)
ask(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
