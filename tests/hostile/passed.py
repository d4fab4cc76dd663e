"""A listener that is passed on by SCM_RIGHTS while somebody else answers for it.

passed.py serve ADDRESS PORT [keep] prints "cookie N"; at SIGUSR1 passes its listener to another process, started by
    exec, which prints "taken" when it has it, and greets each connection; this process then closes its own, or keeps it
passed.py answer COOKIE KIND        binds the name by which processes ask for a listener's page, prints "bound", and
    answers: a page of its own and, by KIND, "few" nothing else, "pipe" a full pipe in place of an event and another socket
passed.py beg COOKIE                asks for the page of a listener that it has not got: "got N descriptors"
passed.py ask ADDRESS PORT N        N connections are greeted, one after the other
"""
import array, fcntl, os, signal, socket, subprocess, sys

SO_COOKIE = 57
F_ADD_SEALS, SEALS = 1033, 1 | 2 | 4


def serve(address, port, keep=None):
    listener = socket.create_server((address, int(port)))
    mine, its = socket.socketpair()
    taker = subprocess.Popen([sys.executable, __file__, "take"], stdin=its)
    signal.signal(signal.SIGTERM, lambda *_: (taker.kill(), os._exit(0)))
    print("cookie", int.from_bytes(listener.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder), flush=True)
    signal.sigwait([signal.SIGUSR1])
    socket.send_fds(mine, [b"."], [listener.fileno()])
    mine.recv(1)
    if not keep:
        listener.close()
    signal.pause()


def take():
    mailbox = socket.socket(fileno=0)
    listener = socket.socket(fileno=socket.recv_fds(mailbox, 1, 1)[1][0])
    print("taken", flush=True)
    mailbox.send(b".")
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"hello")
        connection.close()


def answer(cookie, kind):
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    name.bind("\0vma/passed/%x" % int(cookie))
    page = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.ftruncate(page, 4096)
    fcntl.fcntl(page, F_ADD_SEALS, SEALS)
    _, full = os.pipe()
    os.set_blocking(full, False)
    try:
        while True:
            os.write(full, bytes(4096))
    except BlockingIOError:
        os.set_blocking(full, True)
    other = socket.socket()
    fds = {"few": [page], "pipe": [page, full, other.fileno()]}[kind]
    print("bound", flush=True)
    while True:
        _, asker = name.recvfrom(1)
        name.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], 0, asker)
        print("answered", flush=True)


def beg(cookie):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        asker.bind("")
        asker.connect("\0vma/passed/%x" % int(cookie))
        asker.settimeout(20)
        asker.send(b".")
        print("got", len(socket.recv_fds(asker, 10, 5)[1]), "descriptors", flush=True)


def ask(address, port, n):
    for _ in range(int(n)):
        with socket.create_connection((address, int(port)), timeout=10) as connection:
            got = b""
            while len(got) < 5:
                got += connection.recv(5)
            assert got == b"hello", got


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
{"serve": serve, "take": take, "answer": answer, "beg": beg, "ask": ask}[sys.argv[1]](*sys.argv[2:])
