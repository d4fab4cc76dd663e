#!/usr/bin/env python3
"""http_load.py ADDRESS PORT PATH FILE CLIENTS SECONDS: CLIENTS threads ask for PATH, each request on a connection of its
own, for SECONDS, and compare each answer with FILE. A request fails if it is refused, reset, cut short or late by 10 s.
The last line says how many there were; the exit status is 1 if any failed."""
import http.client
import sys
import threading
import time

address, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
wanted = open(sys.argv[4], "rb").read()
clients, end = int(sys.argv[5]), time.monotonic() + float(sys.argv[6])
lock = threading.Lock()
done, failures, slowest = 0, [], 0.0


def ask():
    global done, slowest
    while time.monotonic() < end and len(failures) < 1000:
        begun = time.monotonic()
        try:
            connection = http.client.HTTPConnection(address, port, timeout=10)
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            error = None if answer.status == 200 and body == wanted else f"status {answer.status}, {len(body)} bytes"
        except (OSError, http.client.HTTPException) as failure:
            error = f"{type(failure).__name__} {failure}"
        took = time.monotonic() - begun
        with lock:
            done += 1
            slowest = max(slowest, took)
            if error:
                failures.append(f"{error} after {took * 1000:.0f} ms, {end - time.monotonic():.1f} s before the end")


threads = [threading.Thread(target=ask) for _ in range(clients)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for line in failures[:20]:
    print(line)
print(f"{done} requests, {len(failures)} failed, the slowest took {slowest * 1000:.0f} ms")
sys.exit(1 if failures or not done else 0)
