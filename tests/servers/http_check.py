#!/usr/bin/env python3
"""http_check.py ADDRESS PORT FOLDER CLIENTS REQUESTS [close]: CLIENTS threads, each of which asks REQUESTS times for one
file of FOLDER after the other and compares what comes byte by byte; on one connection, or with `close` on a new one each
time. The last line says how many were right, how many were not, and which processes answered (X-Process); the exit
status is 1 if any was not."""
import http.client
import os
import sys
import threading

address, port, folder, clients, requests = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
close = sys.argv[6:] == ["close"]
files = {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}
lock = threading.Lock()
right, wrong, processes = 0, [], set()


def ask(first):
    global right
    names = list(files)
    connection = None
    for i in range(requests):
        name = names[(first + i) % len(names)]
        try:
            if connection is None:
                connection = http.client.HTTPConnection(address, port, timeout=20)
            connection.request("GET", "/" + name, headers={"Connection": "close"} if close else {})
            answer = connection.getresponse()
            body = answer.read()
            with lock:
                processes.add(answer.getheader("X-Process"))
                if answer.status == 200 and body == files[name]:
                    right += 1
                else:
                    wrong.append(f"{name}: status {answer.status}, {len(body)} bytes of {len(files[name])}")
            if close:
                connection.close()
                connection = None
        except (OSError, http.client.HTTPException) as error:
            with lock:
                wrong.append(f"{name}: {type(error).__name__} {error}")
            connection = None


threads = [threading.Thread(target=ask, args=(i,)) for i in range(clients)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for line in wrong[:20]:
    print(line)
print(f"{right} right, {len(wrong)} wrong, {len(processes - {None})} processes")
sys.exit(1 if wrong else 0)
