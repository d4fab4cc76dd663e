#!/usr/bin/env python3
"""Four sockets of two threads on two local addresses, for what the allocation logic makes of them.

rings.py udp PORT A B            each thread has a UDP socket on A and on B, at PORT and PORT + 1, and answers one datagram
rings.py any PORT                each thread has a UDP socket on all addresses, at PORT and PORT + 1, and answers two
                                 datagrams
rings.py listen PORT A B         each thread listens on A and on B, at PORT and PORT + 1
rings.py accept PORT A B         the main thread listens on A and on B; each thread accepts one connection of each, and
                                 answers a line
rings.py connect PORT A B PEER   each thread connects from A and from B to PEER, and is answered a line
    Prints "thread TID" for each, then "served"; until SIGTERM.
rings.py share udp|tcp PORT A    each thread has a UDP socket, or a listener, at A and PORT with SO_REUSEPORT, and answers
                                 each datagram, or connection, with its number
rings.py share udp PORT "" A     then the main thread has one more, at A: number 2. It is closed at SIGUSR1
rings.py peers udp|tcp PORT A N FROM  N peers ask there, from ports FROM and up (the shares of a hash are the same each
                                 time), and print "thread NUMBER COUNT" of those that answer
rings.py ask udp|tcp PORT A B    a datagram to each of the four UDP sockets, or two connections to each address: all are
                                 to be answered
rings.py answer PORT PEER        listens, and answers a line of four connections
"""
import os
import select
import signal
import socket
import sys
import threading

SECONDS = 20


def answer(connection):
    connection.settimeout(SECONDS)
    connection.sendall(connection.recv(100))


def question(connection, text):
    connection.settimeout(SECONDS)
    connection.sendall(text)
    got = connection.recv(100)
    if got != text:
        sys.exit(f"answered {got!r}, not {text!r}")


def listener_at(address, port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(16)
    return listener


class Thread(threading.Thread):
    def __init__(self, how, number, port, addresses, peer, listeners):
        super().__init__(daemon=True)
        self.how, self.number, self.port, self.addresses = how, number, port, addresses
        self.peer, self.listeners, self.kept = peer, listeners, []
        self.has_sockets, self.is_done = threading.Event(), threading.Event()

    def udp(self, address):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.settimeout(SECONDS)
        udp.bind((address, self.port + self.number))
        return udp

    def connect(self, address):
        connection = socket.socket()
        connection.bind((address, 0))
        connection.connect((self.peer, self.port))
        return connection

    def run(self):
        if self.how == "udp":
            self.kept = [self.udp(address) for address in self.addresses]
        elif self.how == "any":
            self.kept = [self.udp("")] * 2
        elif self.how == "listen":
            self.kept = [listener_at(address, self.port + self.number) for address in self.addresses]
        elif self.how == "connect":
            self.kept = [self.connect(address) for address in self.addresses]
        self.has_sockets.set()
        if self.how == "accept":
            self.kept = [listener.accept()[0] for listener in self.listeners]
        for one in self.kept:
            if self.how in ("udp", "any"):
                data, peer = one.recvfrom(100)
                one.sendto(data, peer)
            elif self.how == "connect":
                question(one, b"from thread %d" % self.number)
            elif self.how == "accept":
                answer(one)
        self.is_done.set()
        threading.Event().wait()


def serve(how, port, addresses, peer):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    listeners = [listener_at(address, port) for address in addresses] if how == "accept" else []
    threads = [Thread(how, number, port, addresses, peer, listeners) for number in range(2)]
    for thread in threads:
        thread.start()
        thread.has_sockets.wait(SECONDS)
    for thread in threads:
        print("thread", thread.native_id, flush=True)
    print("ready", flush=True)
    for thread in threads:
        if not thread.is_done.wait(SECONDS):
            sys.exit("a thread is not served")
    print("served", flush=True)
    while True:
        signal.pause()


def shared_socket(kind, address, port):
    shared = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.bind((address, port))
    if kind == "tcp":
        shared.listen(128)
    return shared


def share_main(kind, address, port, number, has_socket):
    shared = shared_socket(kind, address, port)
    has_socket.set()
    kept = []
    while True:
        if kind == "udp":
            shared.sendto(b"%d" % number, shared.recvfrom(100)[1])
        else:
            kept.append(shared.accept()[0])
            kept[-1].recv(100)
            kept[-1].sendall(b"%d" % number)


def answer_until_told(shared):
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    print("ready", flush=True)
    while not told:
        if select.select([shared], [], [], 0.1)[0]:
            shared.sendto(b"2", shared.recvfrom(100)[1])
    shared.close()
    print("closed", flush=True)


def share(kind, port, address, closer):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for number in range(2):
        has_socket = threading.Event()
        threading.Thread(target=share_main, args=(kind, address, port, number, has_socket), daemon=True).start()
        has_socket.wait(SECONDS)
    if closer:
        answer_until_told(shared_socket(kind, closer, port))
    else:
        print("ready", flush=True)
    while True:
        signal.pause()


def peers(kind, port, address, number, first_port):
    asking = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
              for _ in range(number)]
    for offset, one in enumerate(asking):
        one.settimeout(SECONDS)
        one.bind(("", first_port + offset))
        one.connect((address, port))
    for one in asking:
        one.sendall(b"which?")
    answers = [one.recv(100).decode() for one in asking]
    for answer_of in sorted(set(answers)):
        print("thread", answer_of, answers.count(answer_of))


def ask(kind, port, addresses):
    if kind == "udp":
        for number in range(2):
            for address in addresses:
                asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                asking.settimeout(SECONDS)
                asking.sendto(b"question", (address, port + number))
                asking.recvfrom(100)  # by one of its addresses
        return
    connections = []
    for address in addresses * 2:
        connections.append(socket.create_connection((address, port)))
        connections[-1].sendall(b"hello")
    for connection in connections:
        connection.settimeout(SECONDS)
        if connection.recv(100) != b"hello":
            sys.exit("a connection is not answered")


def main():
    how = sys.argv[1]
    if how == "ask":
        ask(sys.argv[2], int(sys.argv[3]), sys.argv[4:6])
    elif how == "share":
        share(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else None)
    elif how == "peers":
        peers(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    elif how == "answer":
        listener = listener_at(sys.argv[3], int(sys.argv[2]))
        print("ready", flush=True)
        connections = [listener.accept()[0] for _ in range(4)]
        for connection in connections:
            answer(connection)
        signal.pause()
    else:
        serve(how, int(sys.argv[2]), sys.argv[3:5], sys.argv[5] if len(sys.argv) > 5 else None)


main()
