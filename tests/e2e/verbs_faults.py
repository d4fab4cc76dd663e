"""What a server and a client of UDP and TCP say to each other while their card has faults.

  verbs_faults.py serve ADDRESS           echoes; prints "ready"
  verbs_faults.py ask ADDRESS STOP        asks until the file STOP is there; every tenth of a second it prints a line
  verbs_faults.py many ADDRESS N SECONDS  N threads, of which each makes and ends sockets and is answered once by each

A line: "udp ANSWERS SENT KNOWN LOST tcp ANSWERS ENDED wrong N": answers that were right; datagrams that were sent; so many
of these, in order, are known to be answered or lost; and so many have no answer. Connections that have ended. Answers that
were not what had been said, or came twice.

WINDOW datagrams are on their way at a time. One that has no answer after PATIENCE seconds counts as lost until its answer
comes, and another takes its place. So a fault that takes T seconds loses WINDOW * (1 + T / PATIENCE) datagrams at most.
"""
import os
import socket
import sys
import threading
import time

PORT = 7200
BLOCK = 20000
WINDOW = 8
PATIENCE = 0.2


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
        self.udp = self.sent = self.known = self.lost = self.tcp = self.ended = self.wrong = 0

    def __str__(self):
        udp = f"udp {self.udp} {self.sent} {self.known} {self.lost}"
        return f"{udp} tcp {self.tcp} {self.ended} wrong {self.wrong}"


def ask_by_datagrams(address, counts):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((address, PORT))
    s.settimeout(0.05)
    waiting, lost = {}, {}
    while True:
        now = time.monotonic()
        for number in [number for number, (_, since) in waiting.items() if now - since > PATIENCE]:
            lost[number] = waiting.pop(number)
        while len(waiting) < WINDOW:
            counts.sent += 1
            said = counts.sent.to_bytes(8, "big") + os.urandom(1000)
            waiting[counts.sent] = said, now
            try:
                s.send(said)
            except OSError:  # of one before: the port is nobody's at this moment
                pass
        counts.known, counts.lost = min(waiting) - 1, len(lost)
        try:
            heard = s.recv(2000)
        except TimeoutError:
            continue
        except OSError:
            time.sleep(0.01)
            continue
        number = int.from_bytes(heard[:8], "big")
        said, _ = waiting.pop(number, None) or lost.pop(number, None) or (None, None)
        if heard == said:
            counts.udp += 1
        else:
            counts.wrong += 1
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
