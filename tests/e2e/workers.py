#!/usr/bin/env python3
"""A server with worker processes, and its clients.

workers.py serve ADDRESS PORT WORKERS fork|reuseport   each worker accepts, greets with its number, then echoes one line.
    A line "hold S" is answered, and the worker then computes for S seconds without asking for anything; "rest S": it
    takes the listener out of its epoll set and sleeps in epoll_wait, time and again, with this connection in the set.
    SIGUSR1 to a worker closes its listener. Prints "worker PID" for each. With a further argument S (of fork): S seconds
    after a worker has died another one is forked.
workers.py serve ADDRESS PORT WORKERS rights|plain     a worker like these, which at SIGUSR2 passes its listener on
    (SCM_RIGHTS) to others of this program, started by exec, until there are WORKERS; "plain": without the library.
workers.py ask ADDRESS PORT N SECONDS greeting|echo    N connections at a time. Each is to have its whole answer within
    SECONDS; "greeting": the client says nothing before it has been greeted. Prints how many each worker has served.
workers.py tell ADDRESS PORT PID LINE                  says LINE to the worker PID: asks until it is that one. Of
    "rest S" the connection stays open for S seconds.
"""
import collections
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

how, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def make_listener(reuseport):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuseport:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((address, port))
    listener.listen(128)
    return listener


def rest(listener, connection, seconds):
    end = time.monotonic() + seconds
    with select.epoll() as events:
        events.register(connection, select.EPOLLIN)
        events.register(listener, select.EPOLLIN)
        events.poll(0)
        events.unregister(listener)
        connection.sendall(b"resting\n")
        while time.monotonic() < end:
            events.poll(0.02)


def work(listener):
    closing = []
    signal.signal(signal.SIGUSR1, lambda *_: closing.append(True))
    while True:
        if closing:
            listener.close()
            while True:
                signal.pause()
        listener.settimeout(0.5)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(20)
        try:
            connection.sendall(b"%d\n" % os.getpid())
            line = connection.makefile("rb").readline()
            if line.startswith(b"rest"):
                rest(listener, connection, float(line.split()[1]))
            else:
                connection.sendall(line)
        except OSError as error:
            print("worker", os.getpid(), error, flush=True)
        connection.close()
        if line.startswith(b"hold"):
            end = time.monotonic() + float(line.split()[1])
            while time.monotonic() < end and not closing:
                time.sleep(0.01)


def take(mailbox):
    _, fds, _, _ = socket.recv_fds(mailbox, 1, 1)
    print("worker", os.getpid(), flush=True)
    work(socket.socket(fileno=fds[0]))


def send_listener(listener, taken):
    environment = {name: value for name, value in os.environ.items() if taken == "rights" or name != "LD_PRELOAD"}
    mine, its = socket.socketpair()
    child = subprocess.Popen([sys.executable, *sys.argv[:4], "0", "taken"], stdin=its, env=environment)
    its.close()
    socket.send_fds(mine, [b"."], [listener.fileno()])
    return child


def serve_and_pass_on():
    listener, children = make_listener(False), []
    signal.signal(signal.SIGTERM, lambda *_: [child.kill() for child in children] and os._exit(0) or os._exit(0))
    signal.signal(signal.SIGUSR2, lambda *_: children.extend(
        send_listener(listener, sys.argv[5]) for _ in range(int(sys.argv[4]) - 1)))
    print("worker", os.getpid(), flush=True)
    work(listener)


def serve():
    if sys.argv[5] == "taken":
        take(socket.socket(fileno=0))
    if sys.argv[5] in ("rights", "plain"):
        serve_and_pass_on()
    listener = make_listener(False) if sys.argv[5] == "fork" else None
    children = []
    if len(sys.argv) > 6:
        time.sleep(1)  # what is still to be done about the listener in this process is done before it forks

    def end(*_):
        for child in children:
            os.kill(child, signal.SIGKILL)
        os._exit(0)

    def fork():
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            work(listener or make_listener(True))
        children.append(child)
        print("worker", child, flush=True)

    for _ in range(int(sys.argv[4])):
        fork()
    signal.signal(signal.SIGTERM, end)
    while len(sys.argv) <= 6:
        signal.pause()
    while True:
        children.remove(os.wait()[0])
        time.sleep(float(sys.argv[6]))
        fork()


def converse(line, seconds, greeted):
    connection = socket.create_connection((address, port), timeout=seconds)
    connection.settimeout(seconds)
    if not greeted:
        connection.sendall(line)
    file = connection.makefile("rb")
    worker = file.readline()
    if greeted:
        connection.sendall(line)
    if file.readline() != line or file.read() != b"":
        raise OSError("a wrong answer")
    connection.close()
    return int(worker)


def ask():
    served, failures, lock = collections.Counter(), [], threading.Lock()
    seconds, slowest = float(sys.argv[5]), [0.0]

    def one(i):
        begun = time.monotonic()
        try:
            worker = converse(b"line %d\n" % i, seconds, sys.argv[6] == "greeting")
            with lock:
                served[worker] += 1
        except OSError as error:
            with lock:
                failures.append(f"{i}: {error!r} after {time.monotonic() - begun:.2f} s")
        with lock:
            slowest[0] = max(slowest[0], time.monotonic() - begun)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(int(sys.argv[4]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker, n in sorted(served.items()):
        print("served", worker, n)
    print("\n".join(failures))
    print(f"slowest {slowest[0]:.3f} s")
    sys.exit(1 if failures else 0)


def tell():
    for _ in range(200):
        connection = socket.create_connection((address, port), timeout=10)
        connection.settimeout(10)
        file = connection.makefile("rb")
        wanted = file.readline().strip().decode() == sys.argv[4]
        connection.sendall((sys.argv[5] if wanted else "no").encode() + b"\n")
        file.readline()
        if wanted and sys.argv[5].startswith("rest"):
            print("resting", flush=True)
            time.sleep(float(sys.argv[5].split()[1]))
        connection.close()
        if wanted:
            return
    sys.exit("the worker was never met")


{"serve": serve, "ask": ask, "tell": tell}[how]()
