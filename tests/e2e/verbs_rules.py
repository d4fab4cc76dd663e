"""Threads of one process, on one ring: one receives while the others make sockets whose rules take long.

  verbs_rules.py serve ADDRESS RULE_MS    echoes; makes sockets when "go" comes; prints what it saw, and ends
  verbs_rules.py ask ADDRESS              a numbered datagram every few milliseconds, until the server says that it is over

The server counts the datagrams that come while a call that makes a rule is under way. Each call takes RULE_MS at least: a
call that did not has made no rule. What it prints: "calls N, slow N, stopped N, missing N": stopped are those in which the
receiver went without a datagram for half the time of a rule or more.
"""
import socket
import sys
import threading
import time

PORT = 7400
GAP = 0.004


class Receiver:
    def __init__(self, address):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind((address, PORT))
        self.times = []
        self.numbers = set()
        self.begun = threading.Event()
        self.over = False

    def run(self):
        while not self.over:
            data, peer = self.socket.recvfrom(100)
            self.times.append(time.monotonic())
            self.numbers.add(int(data))
            self.socket.sendto(b"over" if self.over else data, peer)
            self.begun.set()
        self.socket.sendto(b"over", peer)

    def longest_gap(self, since, until):
        times = [since] + [t for t in self.times if since < t < until] + [until]
        return max(b - a for a, b in zip(times, times[1:]))


def make_udp(address, i, kept):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, PORT + 10 + i))
    kept.append(s)


def make_listener(address, i, kept):
    kept.append(socket.create_server((address, PORT + 40 + i)))


def connect(address, i, kept):
    peer = kept[0]
    s = socket.create_connection(peer, 10)
    kept.append(s)


def measured(receiver, call, rule_s):
    begun = time.monotonic()
    call()
    ended = time.monotonic()
    slow = ended - begun >= rule_s * 0.9
    time.sleep(0.02)
    return slow, receiver.longest_gap(begun, ended) >= rule_s / 2


def serve(address, peer, rule_ms):
    rule_s = rule_ms / 1000
    receiver = Receiver(address)
    thread = threading.Thread(target=receiver.run, daemon=True)
    thread.start()
    print("ready", flush=True)
    receiver.begun.wait()
    sys.stdin.readline()
    slow, stopped, calls, kept = 0, 0, 0, [(peer, PORT + 1)]
    for make in make_udp, make_listener, connect:
        for i in range(4):
            was_slow, was_stopped = measured(receiver, lambda: make(address, i, kept), rule_s)
            calls += 1
            slow += was_slow
            stopped += was_stopped
    for s in kept[1:]:
        s.close()
    receiver.over = True
    thread.join(10)
    missing = max(receiver.numbers) - min(receiver.numbers) + 1 - len(receiver.numbers)
    print(f"calls {calls}, slow {slow}, stopped {stopped}, missing {missing}", flush=True)


def ask(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((address, PORT))
    s.settimeout(0)
    number = 0
    while True:
        number += 1
        s.send(b"%d" % number)
        time.sleep(GAP)
        try:
            while True:
                if s.recv(100) == b"over":
                    return
        except OSError:
            pass


if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    ask(sys.argv[2])
