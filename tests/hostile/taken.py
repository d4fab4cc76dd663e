"""An offloaded connection, and processes that ask for it which have no right to it, or are not its owner.

taken.py serve ADDRESS PORT GO      prints "pid N"; waits until the file GO exists; "listens"; accepts one connection, prints
    "socket FD COOKIE", and echoes to its end
taken.py ping ADDRESS PORT SECONDS  one connection: says something and hears it again, for so long; "rounds N", then waits
    for its input's end, and says it once more: "still"
taken.py ask PID FD COOKIE          as root, with another socket in place of the owner's: prints each answer
taken.py flood PID FD COOKIE SECONDS    prints "flooding", and sends messages of all kinds for so long; "answered N refused N of N"
taken.py squat PID SECONDS          binds the name of another process, prints "bound", answers all that it is to be shown the
    socket, and prints "got N descriptors" at the end
taken.py take PID FD SECONDS        pidfd_getfd: says whether it is connected there; waits so long with it
"""
import array, ctypes, os, select, signal, socket, struct, sys, time

SO_COOKIE = 57
NOT_MINE, SHOW, HANDED_OVER, STAYS, REFUSED = range(5)


def name_of(pid):
    return "\0vma/process/%d" % os.fstat(os.pidfd_open(int(pid))).st_ino


def question(fd, cookie):
    return struct.pack("=Qi4x", int(cookie), int(fd))


def serve(address, port, go):
    print("pid", os.getpid(), flush=True)
    while not os.path.exists(go):
        time.sleep(0.05)
    listener = socket.create_server((address, int(port)))
    print("listens", flush=True)
    connection, _ = listener.accept()
    listener.close()
    cookie = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)
    print("socket", connection.fileno(), cookie, flush=True)
    while got := connection.recv(1000):
        connection.sendall(got)


def once(connection, i):
    said = b"%099d." % i
    connection.sendall(said)
    got = b""
    while len(got) < len(said):
        piece = connection.recv(1000)
        assert piece, "the end"
        got += piece
    assert got == said, got


def ping(address, port, seconds):
    connection = socket.create_connection((address, int(port)), timeout=30)
    end, rounds = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        once(connection, rounds)
        rounds += 1
        time.sleep(0.001)
    print("rounds", rounds, flush=True)
    sys.stdin.read()
    once(connection, rounds)
    print("still", flush=True)


def asker(pid):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind("")
    s.connect(name_of(pid))
    s.settimeout(5)
    return s


def ask(pid, fd, cookie):
    other = socket.socket()
    with asker(pid) as s:
        for text, fds in ((question(fd, cookie), []), (question(fd, int(cookie) + 1), []),
                          (question(fd, cookie), [other.fileno()]), (question(fd, cookie), [0]),
                          (question(fd, 0), [other.fileno()]), (question(2**31 - 1, cookie), [other.fileno()]),
                          (question(-1, cookie), [other.fileno()])):
            if fds:
                socket.send_fds(s, [text], fds)
            else:
                s.send(text)
            print(s.recv(10)[0])


def flood(pid, fd, cookie, seconds):
    other, readable = socket.socket(), os.pipe()[0]
    kinds = [(question(fd, cookie), []), (question(fd, cookie), [other.fileno()]), (b"", []), (bytes(5000), [readable]),
             (question(fd, cookie), [readable] * 200), (question(12345, 1), [])]
    s = asker(pid)
    s.setblocking(False)
    print("flooding", flush=True)
    end, sent, refused, answered = time.monotonic() + float(seconds), 0, 0, 0
    while time.monotonic() < end:
        for text, fds in kinds:
            try:
                if fds:
                    socket.send_fds(s, [text], fds)
                else:
                    s.send(text)
                sent += 1
            except BlockingIOError:
                pass
            try:
                if s.recv(10)[0] == REFUSED:
                    refused += 1
                else:
                    answered += 1
            except BlockingIOError:
                pass
    print("answered", answered, "refused", refused, "of", sent, flush=True)


def squat(pid, seconds):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(name_of(pid))
    print("bound", flush=True)
    end, got = time.monotonic() + float(seconds), 0
    while (left := end - time.monotonic()) > 0:
        if not select.select([s], [], [], left)[0]:
            break
        _, control, _, asked_by = s.recvmsg(100, 1000)
        got += len(control)
        s.sendto(bytes([SHOW]), asked_by)
        print("asked", flush=True)
    print("got", got, "descriptors", flush=True)


def take(pid, fd, seconds):
    taken = ctypes.CDLL(None).syscall(438, os.pidfd_open(int(pid)), int(fd), 0)
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=taken)
    try:
        s.getpeername()
        print("connected", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
    time.sleep(float(seconds))


globals()[sys.argv[1]](*sys.argv[2:])
