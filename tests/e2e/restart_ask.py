# restart_ask.py ADDRESS PORT CONNECTIONS FILE [new|loose]: asks on each connection in turn until FILE is there. new: a
# connection more for every question; loose: what ends is made again, and not counted. Says the longest time that an
# answer took, and how many connections have ended.
import os, socket, sys, time

address, port, n, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
new, loose = sys.argv[5:] == ["new"], sys.argv[5:] == ["loose"]


def connect():
    s = socket.socket()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.settimeout(2 if loose else 30)
    s.connect((address, port))
    return s


def ask(s, word):
    begun = time.monotonic()
    s.sendall(word)
    assert s.recv(len(word), socket.MSG_WAITALL) == word
    return time.monotonic() - begun


kept = [connect() for _ in range(n if not loose else 0)]
for s in kept:
    ask(s, b"at first")
print("connected", flush=True)
longest, asked, ended = 0, 0, 0
while not os.path.exists(until):
    for s in list(kept):
        try:
            longest = max(longest, ask(s, b"word%08d" % asked))
            asked += 1
        except (OSError, AssertionError) as e:
            kept.remove(s)
            s.close()
            if not loose:
                print("ended:", e, flush=True)
                ended += 1
    try:
        while loose and len(kept) < n:
            kept.append(connect())
    except OSError:
        pass
    if new:
        try:
            begun = time.monotonic()
            s = connect()
            ask(s, b"new")
            s.close()
            longest = max(longest, time.monotonic() - begun)
        except OSError as e:
            print("new one ended:", e, flush=True)
            ended += 1
    time.sleep(0.002)
print("asked %d ended %d longest %d ms" % (asked, ended, longest * 1000), flush=True)
