# memcached_values.py IP PORT: values of many sizes are stored and read back, each with its own bytes.
import random
import socket
import sys


def value_of(size):
    return random.Random(size).randbytes(size)


def main(ip, port):
    sizes = [0, 1, 2, 100, 1447, 1448, 1449, 4096, 16384, 65535, 65536, 100000, 524288, 1000000]
    with socket.create_connection((ip, port), 10) as connection:
        stream = connection.makefile("rwb", buffering=1 << 20)
        for size in sizes:
            stream.write(b"set k%d 0 0 %d\r\n" % (size, size) + value_of(size) + b"\r\n")
        stream.flush()
        for size in sizes:
            assert stream.readline() == b"STORED\r\n", size
        stream.write(b"".join(b"get k%d\r\n" % size for size in sizes))
        stream.flush()
        for size in sizes:
            assert stream.readline() == b"VALUE k%d 0 %d\r\n" % (size, size), size
            assert stream.read(size + 2) == value_of(size) + b"\r\n", size
            assert stream.readline() == b"END\r\n", size


main(sys.argv[1], int(sys.argv[2]))
