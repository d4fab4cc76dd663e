# udp_migration.py recv ADDRESS PORT COUNT TURN | send ADDRESS PORT COUNT RATE
# udp_migration.py turns FROM ADDRESS PORT COUNT TURN | collect ADDRESS PORT COUNT
#
# One socket, used by two threads in turns of TURN datagrams each, so that it moves between their rings. recv receives so
# and turns sends so; send and collect are the other end. Datagrams are numbered, and have a checksum. The last line tells
# what has come: "4000 of 4000, 0 out of order, 0 wrong".
import random, signal, socket, sys, threading, time, zlib


def datagram(number):
    payload = random.Random(number).randbytes(number % 1200)
    return number.to_bytes(4, "big") + zlib.crc32(payload).to_bytes(4, "big") + payload


class Check:
    def __init__(self, count):
        self.count, self.seen, self.late, self.wrong = count, 0, 0, 0

    def take(self, data):
        number = int.from_bytes(data[:4], "big")
        self.wrong += int.from_bytes(data[4:8], "big") != zlib.crc32(data[8:]) or len(data) != 8 + number % 1200
        self.late += number != self.seen  # none is lost, so the next one is the next number
        self.seen += 1

    def tell(self):
        print(f"{self.seen} of {self.count}, {self.late} out of order, {self.wrong} wrong", flush=True)


def in_turns(work):
    """work(thread) until it says False, by two threads, one after the other."""
    turn, whose = threading.Condition(), [0, True]

    def run(me):
        while True:
            with turn:
                turn.wait_for(lambda: whose[0] == me or not whose[1])
                if not whose[1]:
                    return
            more = work()
            with turn:
                whose[:] = [1 - me, more]
                turn.notify_all()

    threads = [threading.Thread(target=run, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def bound(address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    s.bind((address, port))
    s.settimeout(10)
    return s


def recv(address, port, count, turn):
    s, check = bound(address, port), Check(count)
    print("bound", flush=True)

    def receive():
        for _ in range(turn):
            try:
                check.take(s.recv(2048))
            except TimeoutError:
                return False
            if check.seen == count:
                return False
        return True

    in_turns(receive)
    check.tell()
    signal.pause()  # its counters can be read until then


def collect(address, port, count):
    s, check = bound(address, port), Check(count)
    print("bound", flush=True)
    try:
        while check.seen < count:
            check.take(s.recv(2048))
    except TimeoutError:
        pass
    check.tell()


def send(address, port, count, rate):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    start = time.monotonic()
    for number in range(count):
        s.sendto(datagram(number), (address, port))
        while number > (time.monotonic() - start) * rate:
            time.sleep(0.0005)


def turns(source, address, port, count, turn):
    s, next_number = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), [0]
    s.bind((source, 0))

    def transmit():
        for _ in range(turn):
            s.sendto(datagram(next_number[0]), (address, port))
            next_number[0] += 1
            if next_number[0] == count:
                return False
        return True

    in_turns(transmit)
    print("sent", flush=True)
    signal.pause()


{"recv": recv, "send": send, "turns": turns, "collect": collect}[sys.argv[1]](
    *(int(word) if word.isdigit() else word for word in sys.argv[2:]))
