# A socket at ADDRESS whose process has some of its standard descriptors closed, or closes them by exec. A second later
# FILE gets its state, and whether a vmad runs in this namespace.
#   python3 standard_descriptors.py ADDRESS FILE closed|by-exec NUMBER...
import ctypes
import fcntl
import os
import socket
import sys
import time

address, file, how = sys.argv[1:4]
for number in map(int, sys.argv[4:]):
    if how == "closed":
        os.close(number)
    else:
        fcntl.fcntl(number, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((address, 7010))
time.sleep(1)
state = ctypes.CDLL(None).vma_get_socket_state(s.fileno(), None)
with open(file, "w") as out:
    out.write("%d %d\n" % (state, "@vma/vmad/" in open("/proc/net/unix").read()))
