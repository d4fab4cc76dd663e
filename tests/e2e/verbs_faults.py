"""What a server and a client of UDP and TCP say to each other while their card has faults.

  verbs_faults.py serve ADDRESS           echoes; prints "ready"
  verbs_faults.py ask ADDRESS STOP        asks until the file STOP is there; every tenth of a second it prints a line
  verbs_faults.py many ADDRESS N SECONDS  N threads, of which each makes and ends sockets and is answered once by each

A line: "udp ANSWERS RESENT tcp ANSWERS ENDED wrong N": answers that were right; datagrams that had no answer within 0.2 s
and were sent again; connections that have ended; answers that were not what had been said.
"""
import os
import socket
import sys
import threading
import time

PORT = 7200
BLOCK = 20000


def echo_datagrams(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, PORT))
    print("ready", flush=True)
    while True:
        data, peer = s.recvfrom(2000)
        s.sendto(data, peer)


def echo_stream(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        pass
    connection.close()


def serve(address):
    threading.Thread(target=echo_datagrams, args=(address,), daemon=True).start()
    listener = socket.create_server((address, PORT), backlog=100)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo_stream, args=(connection,), daemon=True).start()


class Counts:
    def __init__(self):
        self.udp = self.resent = self.tcp = self.ended = self.wrong = 0

    def __str__(self):
        return f"udp {self.udp} {self.resent} tcp {self.tcp} {self.ended} wrong {self.wrong}"


def ask_by_datagrams(address, counts):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((address, PORT))
    s.settimeout(0.2)
    number = 0
    while True:
        number += 1
        said = number.to_bytes(8, "big") + os.urandom(1000)
        s.send(said)
        while True:
            try:
                heard = s.recv(2000)
            except TimeoutError:
                counts.resent += 1
                s.send(said)
                continue
            except OSError:  # the port is nobody's at this moment
                counts.resent += 1
                time.sleep(0.05)
                continue
            if heard == said:
                counts.udp += 1
                break
            if heard[:8] >= said[:8]:  # the answer to one that was sent twice is no fault
                counts.wrong += 1
                break
        time.sleep(0.001)


def read_exactly(s, size):
    parts = []
    while size and (data := s.recv(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def ask_by_stream(address, counts):
    while True:
        try:
            with socket.create_connection((address, PORT), 5) as s:
                s.settimeout(20)
                while True:
                    said = os.urandom(BLOCK)
                    s.sendall(said)
                    heard = read_exactly(s, BLOCK)
                    if heard == said:
                        counts.tcp += 1
                    elif said.startswith(heard):
                        raise OSError("it has ended")
                    else:
                        counts.wrong += 1
        except OSError as error:
            print("ended:", error, flush=True)
            counts.ended += 1
            time.sleep(0.05)


def ask(address, stop):
    counts = Counts()
    for work in ask_by_datagrams, ask_by_stream:
        threading.Thread(target=work, args=(address, counts), daemon=True).start()
    while not os.path.exists(stop):
        print(counts, flush=True)
        time.sleep(0.1)


def come_and_go(address, until, left, failed):
    while time.monotonic() < until:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect((address, PORT))
            s.settimeout(1)
            for _ in range(5):
                try:
                    s.send(b"x")
                    assert s.recv(2000) == b"x"
                    break
                except OSError:
                    continue
            else:
                failed.append("udp")
        try:
            with socket.create_connection((address, PORT), 5) as s:
                s.settimeout(5)
                s.sendall(b"y" * 1000)
                assert read_exactly(s, 1000) == b"y" * 1000
        except OSError as error:
            failed.append(f"tcp: {error}")
        left.append(1)


def many(address, n, seconds):
    until, left, failed = time.monotonic() + seconds, [], []
    threads = [threading.Thread(target=come_and_go, args=(address, until, left, failed)) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(left)} rounds, {len(failed)} failed", *failed[:3])
    sys.exit(not left or bool(failed))


if sys.argv[1] == "serve":
    serve(sys.argv[2])
elif sys.argv[1] == "ask":
    ask(sys.argv[2], sys.argv[3])
else:
    many(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
