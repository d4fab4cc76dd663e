# restart_told.py ADDRESS PORT CONNECTIONS SECONDS: a word there and back on each, and then nothing: waits until all have
# heard of their end. Says how many were reset, and when the last was ("reset N last N", ms since the first).
import select, socket, sys, time

address, port, n, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
left = {}
for _ in range(n):
    s = socket.create_connection((address, port), timeout=20)
    s.sendall(b"word")
    assert s.recv(4, socket.MSG_WAITALL) == b"word"
    left[s.fileno()] = s
print("connected", flush=True)
poll, reset, first, last = select.poll(), 0, 0, 0
for fd in left:
    poll.register(fd, select.POLLIN)
until = time.monotonic() + seconds
while left and time.monotonic() < until:
    for fd, _ in poll.poll(max(0, (until - time.monotonic()) * 1000)):
        poll.unregister(fd)
        try:
            left.pop(fd).recv(1)
        except ConnectionResetError:
            reset += 1
            last = time.monotonic()
            first = first or last
print("reset %d last %d" % (reset, (last - first) * 1000), flush=True)
