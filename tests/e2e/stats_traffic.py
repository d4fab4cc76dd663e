# stats_traffic.py ROLE ...: programs whose counters tests/e2e/vma_stats.sh reads. Each says what it has counted itself.
#   udp IP PORT COUNT    a server that answers COUNT datagrams by select, then waits
#   group IP PORT GROUP  joins two groups, waits
#   listen IP PORT       a TCP server that answers on one connection until its end, then waits
#   tcp IP PORT COUNT    a TCP client: COUNT questions of 100 bytes, prints TCP_INFO, waits
#   info IP PORT CC      the same with 50 questions and that congestion control; prints more of TCP_INFO, in ss's words;
#                        300 bytes of answers stay unread
#   ask IP PORT COUNT [AT_ONCE]    a UDP client: COUNT questions of 200 bytes, AT_ONCE of them (1) on their way
#   pace IP PORT udp|tcp RATE    a client of at most RATE questions of 100 bytes a second; says once a second how many it was
#   many IP PORT COUNT   COUNT UDP sockets, on this port and those behind it, waits
import select
import signal
import socket
import struct
import sys
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # an orderly end
role, ip, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def say(*words):
    print(*words, flush=True)


def wait():
    while True:
        time.sleep(1)


def receive(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return data
        data += part
    return data


if role == "udp":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((ip, port))
    say("ready", s.fileno())
    for _ in range(int(sys.argv[4])):
        select.select([s], [], [])
        data, peer = s.recvfrom(2000)
        s.sendto(data, peer)
    say("answered")
    wait()
elif role == "group":
    group = sys.argv[4]
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0", port))
    for last in ("3", "2"):
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
                     socket.inet_aton(group + last) + socket.inet_aton(ip))
    say("ready", s.fileno())
    wait()
elif role == "listen":
    listener = socket.create_server((ip, port))
    say("ready", listener.fileno())
    connection, _ = listener.accept()
    while True:
        data = connection.recv(65536)
        if not data:
            break
        connection.sendall(data)
    say("ended")
    wait()
elif role == "tcp":
    s = socket.create_connection((ip, port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(int(sys.argv[4])):
        s.sendall(bytes(100))
        receive(s, 100)
    time.sleep(0.3)  # the last acknowledgement
    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 280)
    acked, received, out, into = struct.unpack_from("QQII", info, 120)
    say("ready", s.fileno())
    # With this side's SYN in `acked`, as the kernel has it.
    say("info segments_in", into, "segments_out", out, "bytes_in", received, "bytes_acked", acked - 1,
        "retransmits", struct.unpack_from("I", info, 100)[0])
    wait()
elif role == "info":
    s = socket.socket()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    s.connect((ip, port))
    for _ in range(50):
        s.sendall(bytes(100))
        receive(s, 100)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[4].encode())
    s.sendall(bytes(300))
    time.sleep(0.5)
    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 280)
    u32 = {name: struct.unpack_from("I", info, at)[0] for name, at in (
        ("rto", 8), ("mss", 16), ("rtt", 68), ("rttvar", 72), ("ssthresh", 76), ("cwnd", 80), ("retrans", 100),
        ("segs_out", 136), ("segs_in", 140), ("snd_wnd", 228))}
    acked, received = struct.unpack_from("QQ", info, 120)
    say("ready", s.fileno())
    say("info", sys.argv[4], f"wscale:{info[6] & 15},{info[6] >> 4}", f"rto:{u32['rto'] / 1000:g}",
        f"rtt:{u32['rtt'] / 1000:g}/{u32['rttvar'] / 1000:g}", f"mss:{u32['mss']}", f"cwnd:{u32['cwnd']}",
        *([f"ssthresh:{u32['ssthresh']}"] if u32["ssthresh"] < 0x7fffffff else []),
        f"bytes_sent:{struct.unpack_from('Q', info, 200)[0]}", f"bytes_acked:{acked - 1}", f"bytes_received:{received}",
        f"segs_out:{u32['segs_out']}", f"segs_in:{u32['segs_in']}",
        *([f"retrans:0/{u32['retrans']}"] if u32["retrans"] else []), f"snd_wnd:{u32['snd_wnd']}")
    wait()
elif role == "ask":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((ip, port))
    count, at_once = int(sys.argv[4]), int(sys.argv[5]) if len(sys.argv) > 5 else 1
    for begun in range(0, count, at_once):
        asked = min(at_once, count - begun)
        for _ in range(asked):
            s.send(bytes(200))
        for _ in range(asked):
            s.recv(2000)
    say("asked")
elif role == "pace":
    udp = sys.argv[4] == "udp"
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
    s.connect((ip, port))
    say("ready", s.fileno())
    count, begun = 0, time.monotonic()
    while True:
        s.send(bytes(100))
        receive(s, 100)
        count += 1
        passed = time.monotonic() - begun
        if passed >= 1:
            say("rate", round(count / passed))
            count, begun = 0, time.monotonic()
        time.sleep(1 / int(sys.argv[5]))
elif role == "many":
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(int(sys.argv[4]))]
    for i, s in enumerate(sockets):
        s.bind((ip, port + i))
    say("ready", sockets[0].fileno())
    wait()
