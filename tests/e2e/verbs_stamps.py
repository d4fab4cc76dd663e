"""Time stamps of received datagrams.

verbs_stamps.py ADDRESS OWN|SYSTEM|WALL|NONE|SOFTWARE [IFNAME]
    receives datagrams that hold the time of their sending, on the system's clock and on the one that counts from the
    start, and says "right" if each stamp is what is expected:
      OWN       the card's own time; here its counter is as old as the clock that counts from the start
      SYSTEM    the card's stamp in the system's time; SO_TIMESTAMPNS tells it, too
      WALL      the card's stamp by a clock of its own, which is here the system's; SO_TIMESTAMPNS is by software
      NONE      no message
      SOFTWARE  no stamp of the card
    IFNAME: the interface's stamps are switched on before, as for a kernel socket
verbs_stamps.py ADDRESS send COUNT
"""
import array, fcntl, socket, struct, sys, time

SO_TIMESTAMPNS, SO_TIMESTAMPING = 35, 37
RX_HARDWARE, SOFTWARE, RX_SOFTWARE, RAW_HARDWARE = 4, 16, 8, 64
SIOCSHWTSTAMP, SIOCGHWTSTAMP = 0x89B0, 0x89B1
COUNT, SLACK = 40, 2000000  # what the two clocks may differ by, ns

address, what = (sys.argv[1], 7000), sys.argv[2]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

if what == "send":
    for i in range(int(sys.argv[3])):
        s.sendto(struct.pack("=QQ", time.time_ns(), time.monotonic_ns()), address)
        time.sleep(0.02)
    sys.exit()


def hwtstamp(request, tx_type, rx_filter):
    config = array.array("i", [0, tx_type, rx_filter])
    fcntl.ioctl(s, request, struct.pack("16sP16x", sys.argv[3].encode(), config.buffer_info()[0]))
    return list(config)


if len(sys.argv) > 3:
    try:
        hwtstamp(SIOCSHWTSTAMP, 1, 1)
        print("wrong: stamps of what is sent are there")
    except OSError:
        pass
    assert hwtstamp(SIOCSHWTSTAMP, 0, 1) == [0, 0, 1]
    assert hwtstamp(SIOCGHWTSTAMP, 0, 0) == [0, 0, 1]

s.bind(address)
flags = RX_HARDWARE | RAW_HARDWARE
if what in ("SYSTEM", "WALL", "SOFTWARE"):
    flags |= RX_SOFTWARE | SOFTWARE
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, flags)
s.settimeout(20)
print("ready", flush=True)

ns = lambda sec, nsec: sec * 1000000000 + nsec
last = 0
for i in range(COUNT):
    data, control, _, _ = s.recvmsg(100, 512)
    now, now_own = time.time_ns(), time.monotonic_ns()
    sent, sent_own = struct.unpack("=QQ", data)
    all = {kind: struct.unpack("=" + "q" * (len(body) // 8), body) for _, kind, body in control}
    if what == "NONE":
        assert not all, all
        continue
    stamps = all[SO_TIMESTAMPING]
    software, raw = ns(*stamps[0:2]), ns(*stamps[4:6])
    assert stamps[2:4] == (0, 0), stamps
    if what == "OWN":
        assert software == 0, software
        assert sent_own - SLACK <= raw <= now_own + SLACK, (sent_own, raw, now_own)
    else:
        fine = ns(*all[SO_TIMESTAMPNS])
        assert sent - SLACK <= fine <= now and software == fine, (sent, fine, software, now)
        if what == "SOFTWARE":
            assert raw == 0, raw
        else:
            assert sent - SLACK <= raw <= now + SLACK and raw >= last, (sent, raw, now, last)
            assert fine <= raw or what == "WALL", (fine, raw)
            last = raw
print("right", flush=True)
