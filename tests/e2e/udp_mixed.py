# udp_mixed.py recv ADDRESS PORT COUNT | send FROM ADDRESS PORT COUNT [connected]
#
# Datagrams below and above the MTU in turn, numbered and with checksums. The receiver prints what it has got:
# "1000 of 1000, 0 out of order, 0 wrong, 0 twice"; "out of order" counts those that come behind a later one.
import random, socket, sys, time, zlib


def datagram(number):
    sizes = random.Random(number)
    size = sizes.choice([12, 64, 1000, 1472, 1473, 2000, 2952, 2953, 5000, 9000, sizes.randrange(12, 20000)])
    if number % 100 == 99:
        size = 65507
    payload = sizes.randbytes(size - 8)
    return number.to_bytes(4, "big") + zlib.crc32(payload).to_bytes(4, "big") + payload


def receive(address, port, count):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    s.bind((address, port))
    print("bound", flush=True)
    seen, latest, late, wrong, twice = set(), -1, 0, 0, 0
    s.settimeout(20)
    try:
        while len(seen) < count:
            data = s.recv(65536)
            s.settimeout(3)
            number = int.from_bytes(data[:4], "big")
            wrong += data != datagram(number)
            twice += number in seen
            late += number < latest
            latest = max(latest, number)
            seen.add(number)
    except TimeoutError:
        pass
    print(f"{len(seen)} of {count}, {late} out of order, {wrong} wrong, {twice} twice", flush=True)


def send(source, address, port, count, connected):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((source, 0))
    if connected:
        s.connect((address, port))
    for number in range(count):
        if connected:
            s.send(datagram(number))
        else:
            s.sendto(datagram(number), (address, port))
        if number % 8 == 7:
            time.sleep(0.004)


if sys.argv[1] == "recv":
    receive(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    send(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), "connected" in sys.argv)
