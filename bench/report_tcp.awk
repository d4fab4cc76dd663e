# report_tcp.awk: the tables about unmodified programs over TCP; after report_figures.awk.

function tcp_latency(text, name) {
	if (!(name in seen)) { printf "  %-40s not measured\n", text; return }
	printf "  %-40s %8.2f %8.2f %8.2f %9.1f   %s\n", text, figure(name, "near_p50_ns") / 1000, figure(name, "near_p99_ns") / 1000,
		figure(name, "near_p99.9_ns") / 1000, figure(name, "near_max_ns") / 1000, proof(name)
}

function rates(text, what, key, unit,   how, i, list, said) {
	split("lib twin kernel", list, " ")
	for (i = 1; i <= 3; i++) {
		how = list[i]
		if (!((what "/" how) in seen)) continue
		printf "  %-31s %-16s %9.1f %s   %s\n", said++ ? "" : text, how == "lib" ? "libvma.so" : how == "twin" ? "kernel, spinning" : "kernel",
			figure(what "/" how, key) / unit, show(".2f", 8, figure(what "/" how, key, what "/kernel")), proof(what "/" how)
	}
}

function than(what, key, base) { return figure(what "/lib", key, what "/" base) }

END {
	if (!("tcp-pp" in table) && !("redis-c1" in table)) exit
	printf "\nsockperf ping-pong over TCP, 64 bytes, one way (half a round trip), microseconds\n"
	printf "  %-40s %8s %8s %8s %9s   %s\n", "", "p50", "p99", "p99.9", "max", "seen by the kernel's TCP"
	tcp_latency("raw AF_XDP (not sockperf)", "ping/raw")
	tcp_latency("libvma.so, VMA_SPEC=latency", "tcp-pp/latency")
	tcp_latency("libvma.so", "tcp-pp/lib")
	tcp_latency("kernel sockets, spinning", "tcp-pp/spin")
	tcp_latency("kernel sockets, blocking", "tcp-pp/kernel")
	verdict("latency profile, times raw AF_XDP", figure("tcp-pp/latency", "near_p50_ns", "ping/raw"), "<=", 1.5)
	verdict("latency profile, times better than spinning kernel sockets", inverse(figure("tcp-pp/latency", "near_p50_ns", "tcp-pp/spin")), ">=", 2)
	verdict("latency profile, times better than blocking kernel sockets", inverse(figure("tcp-pp/latency", "near_p50_ns", "tcp-pp/kernel")), ">=", 10)

	printf "\nRequests per second, thousands; times the kernel's\n"
	printf "  %-30s %-16s %10s %8s   %s\n", "", "", "thousands", "kernel", "seen by the kernel's TCP"
	rates("redis-benchmark -c 1, GET", "redis-c1", "get_per_sec", 1000)
	rates("redis-benchmark -c 50, GET", "redis-c50", "get_per_sec", 1000)
	rates("redis-benchmark -c 50 -P 16, GET", "redis-p16", "get_per_sec", 1000)
	rates("nginx and wrk -c 50, 600 bytes", "nginx", "per_sec", 1000)
	rates("nginx before nginx, wrk -c 1", "proxy-c1", "per_sec", 1000)
	rates("nginx before nginx, wrk -c 50", "proxy-c50", "per_sec", 1000)
	verdict("redis -c 1, times the kernel", than("redis-c1", "get_per_sec", "kernel"), ">=", 5)
	verdict("redis -c 1, times its spinning twin", than("redis-c1", "get_per_sec", "twin"), ">=", 2)
	verdict("redis -c 50, times the kernel", than("redis-c50", "get_per_sec", "kernel"), ">=", 1.5)
	verdict("redis -c 50, times its spinning twin", than("redis-c50", "get_per_sec", "twin"), ">=", 1)
	verdict("redis -c 50 -P 16, times the kernel", than("redis-p16", "get_per_sec", "kernel"), ">=", 1)
	verdict("nginx, times the kernel", than("nginx", "per_sec", "kernel"), ">=", 1.5)
	verdict("nginx, times its spinning twin", than("nginx", "per_sec", "twin"), ">=", 1)
	verdict("a proxy for one client, times the kernel", than("proxy-c1", "per_sec", "kernel"), ">=", 1)
	verdict("a proxy for 50 clients, times the kernel", than("proxy-c50", "per_sec", "kernel"), ">=", 1)

	printf "\nOne stream, Gbit/s; times the kernel's\n"
	printf "  %-30s %-16s %10s %8s   %s\n", "", "", "Gbit/s", "kernel", "seen by the kernel's TCP"
	rates("iperf3, no segmentation offload", "iperf-off", "bits_per_sec", 1e9)
	rates("iperf3, with it", "iperf-on", "bits_per_sec", 1e9)
	rates("1 MB, then 50 ms of computing", "bursts", "bits_per_sec", 1e9)
	rates("reads 1 MB, then computes 50 ms", "pauses", "bits_per_sec", 1e9)
	rates("0.2 ms, no loss", "lossy-0", "bits_per_sec", 1e9)
	rates("0.2 ms, loss 0.1 %", "lossy-1000", "bits_per_sec", 1e9)
	rates("0.2 ms, loss 1 %", "lossy-10000", "bits_per_sec", 1e9)
	rates("0.2 ms, loss 5 %", "lossy-50000", "bits_per_sec", 1e9)
	verdict("iperf3 without segmentation offload, times the kernel", than("iperf-off", "bits_per_sec", "kernel"), ">=", 0.65)
	verdict("1 MB, then computing, times the kernel", than("bursts", "bits_per_sec", "kernel"), ">=", 1)
	verdict("reading in bursts, times the kernel", than("pauses", "bits_per_sec", "kernel"), ">=", 1)
	verdict("loss 0.1 %, times the kernel", than("lossy-1000", "bits_per_sec", "kernel"), ">=", 0.8)
	verdict("loss 1 %, times the kernel", than("lossy-10000", "bits_per_sec", "kernel"), ">=", 0.8)

	printf "\n64 KB at a time through the lossy network, microseconds\n"
	printf "  %-40s %8s %8s %8s %9s   %s\n", "", "p50", "p99", "p99.9", "max", "seen by the kernel's TCP"
	tcp_latency("libvma.so, loss 0.1 %", "lossy64k-1000/lib")
	tcp_latency("kernel, loss 0.1 %", "lossy64k-1000/kernel")
	tcp_latency("libvma.so, loss 1 %", "lossy64k-10000/lib")
	tcp_latency("kernel, loss 1 %", "lossy64k-10000/kernel")
	tcp_latency("libvma.so, loss 5 %", "lossy64k-50000/lib")
	tcp_latency("kernel, loss 5 %", "lossy64k-50000/kernel")
	verdict("p99 of 64 KB, loss 0.1 %, times the kernel's", figure("lossy64k-1000/lib", "near_p99_ns", "lossy64k-1000/kernel"), "<=", 1.5)
	verdict("p99 of 64 KB, loss 1 %, times the kernel's", figure("lossy64k-10000/lib", "near_p99_ns", "lossy64k-10000/kernel"), "<=", 1.5)

	printf "\nMany connections\n"
	rates("connect and close, thousand/s", "connect", "per_sec", 1000)
	rates("for 5 s: ports are used again", "connect-5s", "per_sec", 1000)
	rates("the server closes first", "closed", "per_sec", 1000)
	printf "  %-40s %10s %14s %10s\n", "10,000 idle connections", "MB more", "MB in all", "CPU %"
	for (i = 1; i <= 2; i++) {
		name = "idle-10000/" (i == 1 ? "lib" : "kernel")
		printf "  %-40s %s %s %s\n", i == 1 ? "libvma.so" : "kernel sockets", show(".1f", 10, figure(name, "connections_kb") / 1024),
			show(".1f", 14, figure(name, "resident_kb") / 1024), show(".2f", 10, figure(name, "idle_percent"))
	}
	verdict("connect and close, time, times the kernel's", figure("connect/lib", "both_p50_ns", "connect/kernel"), "<=", 2)
	verdict("connect and close per second, thousands", figure("connect/lib", "per_sec") / 1000, ">=", 15)
	verdict("connections per second for 5 s, thousands", figure("connect-5s/lib", "per_sec") / 1000, ">=", 15)
	verdict("10,000 idle connections, the server's MB", figure("idle-10000/lib", "far_peak_kb") / 1024, "<=", 100)
	verdict("10,000 idle connections, CPU %", figure("idle-10000/lib", "idle_percent"), "<=", 0.1)
	verdict("10,000 idle connections, MB", figure("idle-10000/lib", "connections_kb") / 1024, "<=", 100)

	printf "\n%d of %d bars of TCP held; %s\n", held, bars, room()
}
