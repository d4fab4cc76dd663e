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
rings.py ask udp|tcp PORT A B    a datagram to each of the four UDP sockets, or two connections to each address: all are
                                 to be answered
rings.py answer PORT PEER        listens, and answers a line of four connections
"""
import os
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
