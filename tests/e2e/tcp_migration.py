# tcp_migration.py peer listen|connect ADDRESS PORT BYTES | turns listen|connect ADDRESS PORT BYTES TURNS TURN
#
# One connection, BYTES each way at the same time. turns uses it by two threads, one after the other, TURN sends and TURN
# receives each, so that it moves between their rings; peer is the other end. The last line tells what has come: "500 of
# 500 bytes, as sent". What each end sends is known to the other, so a byte that is lost, wrong or out of order shows.
import random, signal, socket, sys, threading, zlib

BLOCK = (1 << 20) - 1  # no multiple of what a segment or a window has


class Stream:
    """What one end sends: a block of random bytes, over and over."""

    def __init__(self, seed, total):
        self.block = memoryview(random.Random(seed).randbytes(BLOCK))
        self.total, self.at = total, 0

    def next(self, most):
        begin = self.at % BLOCK
        return self.block[begin:begin + min(most, self.total - self.at)]

    def passed(self, count):
        self.at += count

    def is_over(self):
        return self.at == self.total


class Check:
    def __init__(self, seed, total):
        self.expected, self.wrong = Stream(seed, total), False
        self.buffer = memoryview(bytearray(1 << 17))

    def receive(self, s, most):
        """False: the end has come before all the bytes."""
        count = s.recv_into(self.buffer, most)
        at = 0
        while at < count:
            want = self.expected.next(count - at)
            if len(want) == 0:
                self.wrong = True  # more than was sent
                return False
            self.wrong |= zlib.crc32(want) != zlib.crc32(self.buffer[at:at + len(want)])
            self.expected.passed(len(want))
            at += len(want)
        return count != 0

    def is_over(self):
        return self.expected.is_over() or self.wrong

    def tell(self):
        how = "wrong" if self.wrong else "as sent"
        print(f"{self.expected.at} of {self.expected.total} bytes, {how}", flush=True)


def connection(how, address, port):
    s = socket.socket()
    s.settimeout(None)
    if how == "connect":
        s.connect((address, port))
        return s
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen()
    print("listens", flush=True)
    return s.accept()[0]


def peer(how, address, port, total):
    s, mine, theirs = connection(how, address, port), Stream(1, total), Check(2, total)

    def send_all():
        while not mine.is_over():
            mine.passed(s.send(mine.next(1 << 16)))

    thread = threading.Thread(target=send_all)
    thread.start()
    while not theirs.is_over() and theirs.receive(s, 1 << 17):
        pass
    thread.join()
    theirs.tell()
    s.recv(1)  # until the other end has told, too


def turns(how, address, port, total, turns, turn):
    s, mine, theirs = connection(how, address, port), Stream(2, total), Check(1, total)
    chunk = total // (turns * turn) + 1
    threads = [threading.Semaphore(1), threading.Semaphore(0)]
    taken = [0]

    def use():
        for _ in range(turn):
            if not mine.is_over():
                mine.passed(s.send(mine.next(chunk)))
            if not theirs.is_over() and not theirs.receive(s, chunk):
                raise EOFError

    def run(me):
        while True:
            threads[me].acquire()
            try:
                if mine.is_over() and theirs.is_over():
                    return
                use()
                taken[0] += 1
            finally:
                threads[1 - me].release()

    running = [threading.Thread(target=run, args=(me,)) for me in (0, 1)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    print(f"{taken[0]} turns", flush=True)
    theirs.tell()
    signal.pause()  # its counters can be read until then


{"peer": peer, "turns": turns}[sys.argv[1]](*(int(word) if word.isdigit() else word for word in sys.argv[2:]))
