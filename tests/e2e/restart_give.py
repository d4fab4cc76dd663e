"""A server that gives each connection to a child, and its clients: for hand-overs in whose middle vmad ends.

restart_give.py serve ADDRESS PORT              the process accepts and reads a byte, a child echoes the rest
restart_give.py ask ADDRESS PORT THREADS FILE   conversations one after the other in each thread, until FILE is there: each
    in pieces, and every byte is to come back. Prints "asked N failed N slowest N" (ms), and why one has failed.
"""
import os
import signal
import socket
import sys
import threading
import time

how, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
PIECES, PIECE, SECONDS = 8, 3000, 15


def serve():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server((address, port), backlog=128)
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        first = connection.recv(1)  # so that the listener is not left to the kernel after eight of them
        if first and os.fork() == 0:
            listener.close()
            connection.sendall(first)
            while data := connection.recv(65536):
                connection.sendall(data)
            os._exit(0)
        connection.close()


def converse():
    with socket.create_connection((address, port), timeout=SECONDS) as connection:
        sent, got = b"", b""
        for _ in range(PIECES):
            piece = os.urandom(PIECE)
            connection.sendall(piece)
            sent += piece
            time.sleep(0.001)
        connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(65536):
            got += data
        if got != sent:
            raise OSError("%d bytes of %d" % (len(got), len(sent)))


def ask(end, result):
    while not os.path.exists(end):
        begun = time.monotonic()
        try:
            converse()
        except OSError as error:
            result["failed"] += 1
            print("a conversation:", error, flush=True)
        result["asked"] += 1
        result["slowest"] = max(result["slowest"], int((time.monotonic() - begun) * 1000))


if how == "serve":
    serve()
results = [{"asked": 0, "failed": 0, "slowest": 0} for _ in range(int(sys.argv[4]))]
threads = [threading.Thread(target=ask, args=(sys.argv[5], result)) for result in results]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("asked", sum(r["asked"] for r in results), "failed", sum(r["failed"] for r in results), "slowest",
      max(r["slowest"] for r in results))
