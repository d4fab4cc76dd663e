# report_sockets.awk: the tables about unmodified programs over UDP; after report_figures.awk.

function latency(text, name) {
	if (!(name in seen)) { printf "  %-40s not measured\n", text; return }
	printf "  %-40s %8.2f %8.2f %8.2f %9.1f   %s\n", text, figure(name, "near_p50_ns") / 1000, figure(name, "near_p99_ns") / 1000,
		figure(name, "near_p99.9_ns") / 1000, figure(name, "near_max_ns") / 1000, proof(name)
}

function throughput(text, how,   i, name, sent, received, wire, times) {
	for (i = 1; i <= 2; i++) {
		name = "tp-" (i == 1 ? 64 : 1472) "/" how
		if (!(name in seen)) { printf "  %-40s not measured\n", text; continue }
		sent = total(name, "sent"); received = total(name, "received"); wire = total(name, "wire")
		times = figure(name, "far_pps", "tp-" (i == 1 ? 64 : 1472) "/kernel")
		printf "  %-40s %5d %9.0f %8s %10.2f %11.2f %11.2f   %s\n", i == 1 ? text : "", i == 1 ? 64 : 1472,
			figure(name, "far_pps") / 1000, times < 0 ? "-" : sprintf("%.2f", times),
			figure(name, "cpu_sec_per_million"), sent ? 100 * (sent - wire) / sent : 0, sent ? 100 * (sent - received) / sent : 0,
			proof(name)
	}
}

function threads(text, how,   rate) {
	rate = figure("threads-flood/" how, "rate")
	printf "  %-40s %s %s %s   %s\n", text, show(".0f", 12, rate < 0 ? rate : rate / 1000),
		show(".0f", 12, figure("threads-ping/" how, "near_rounds")), show(".3f", 14, figure("threads-flood/" how, "far_cpu_sec")),
		proof("threads-flood/" how)
}

function idle(text, how) {
	printf "  %-40s %s %s %s %s\n", text, show(".2f", 8, figure("idle/" how, "recv_percent")),
		show(".2f", 8, figure("idle/" how, "select_percent")), show(".2f", 8, figure("idle/" how, "poll_percent")),
		show(".2f", 8, figure("idle/" how, "epoll_percent"))
}

function one(text, how,   usec) {
	usec = figure("one/" how, "start_usec")
	printf "  %-40s %s %s %s\n", text, show(".1f", 10, usec < 0 ? usec : usec / 1000),
		show(".0f", 12, figure("one/" how, "resident_kb")), show(".0f", 14, figure("one/" how, "anonymous_kb"))
}

END {
	if (!("pp" in table)) exit
	printf "\nsockperf ping-pong, 64 bytes, one way (half a round trip), microseconds\n"
	printf "  %-40s %8s %8s %8s %9s   %s\n", "", "p50", "p99", "p99.9", "max", "seen by the kernel's UDP"
	latency("raw AF_XDP (not sockperf)", "ping/raw")
	latency("libvma.so, VMA_SPEC=latency", "pp/latency")
	latency("libvma.so", "pp/lib")
	latency("kernel sockets, spinning", "pp/spin")
	latency("kernel sockets, blocking", "pp/kernel")
	verdict("latency profile, times raw AF_XDP", figure("pp/latency", "near_p50_ns", "ping/raw"), "<=", 1.3)
	verdict("latency profile, times better than spinning kernel sockets", inverse(figure("pp/latency", "near_p50_ns", "pp/spin")), ">=", 2.2)
	verdict("latency profile, times better than blocking kernel sockets", inverse(figure("pp/latency", "near_p50_ns", "pp/kernel")), ">=", 12)
	verdict("defaults, times raw AF_XDP", figure("pp/lib", "near_p50_ns", "ping/raw"), "<=", 1.5)

	printf "\nThe same at 1,000 messages per second (cold path)\n"
	printf "  %-40s %8s %8s %8s %9s   %s\n", "", "p50", "p99", "p99.9", "max", "seen by the kernel's UDP"
	latency("libvma.so, VMA_SPEC=latency", "cold/latency")
	latency("libvma.so", "cold/lib")
	latency("kernel sockets, spinning", "cold/spin")
	latency("kernel sockets, blocking", "cold/kernel")

	printf "\nsockperf throughput, counted by the server\n"
	printf "  %-40s %5s %9s %8s %10s %11s %11s   %s\n", "", "", "thousand", "times", "CPU sec", "% not on", "% not", "seen by the"
	printf "  %-40s %5s %9s %8s %10s %11s %11s   %s\n", "", "bytes", "per sec", "kernel", "per mill.", "the wire", "received",
		"kernel's UDP"
	throughput("libvma.so, one kick per message", "latency")
	throughput("libvma.so, shared kicks", "lib")
	throughput("kernel sockets", "kernel")
	verdict("64 bytes, one kick per message, times the kernel's", figure("tp-64/latency", "far_pps", "tp-64/kernel"), ">=", 1.7)
	verdict("1472 bytes, one kick per message, times the kernel's", figure("tp-1472/latency", "far_pps", "tp-1472/kernel"), ">=", 1.7)
	verdict("64 bytes, shared kicks, times the kernel's", figure("tp-64/lib", "far_pps", "tp-64/kernel"), ">=", 2)
	verdict("1472 bytes, shared kicks, times the kernel's", figure("tp-1472/lib", "far_pps", "tp-1472/kernel"), ">=", 2)

	printf "\nEight threads on two cores, each in a blocking receive loop\n"
	printf "  %-40s %12s %12s %14s   %s\n", "", "thousand/s", "round", "receiver's", "seen by the"
	printf "  %-40s %12s %12s %14s   %s\n", "", "received", "trips", "CPU sec", "kernel's UDP"
	threads("libvma.so", "lib")
	threads("kernel sockets", "kernel")
	verdict("received, times the kernel's", figure("threads-flood/lib", "rate", "threads-flood/kernel"), ">=", 1)
	verdict("round trips, times the kernel's", figure("threads-ping/lib", "near_rounds", "threads-ping/kernel"), ">=", 1)

	printf "\nCPU of a process that waits for nothing, percent\n"
	printf "  %-40s %8s %8s %8s %8s\n", "", "recv", "select", "poll", "epoll"
	idle("libvma.so", "lib")
	idle("kernel sockets", "kernel")
	verdict("recv", figure("idle/lib", "recv_percent"), "<=", 2)
	verdict("select", figure("idle/lib", "select_percent"), "<=", 2)
	verdict("poll", figure("idle/lib", "poll_percent"), "<=", 2)
	verdict("epoll_wait", figure("idle/lib", "epoll_percent"), "<=", 2)

	printf "\nA program with one bound socket\n"
	printf "  %-40s %10s %12s %14s\n", "", "ms to run", "resident KB", "anonymous KB"
	one("libvma.so", "lib")
	one("libvma.so, VMA_SPEC=latency", "latency")
	one("kernel sockets", "kernel")

	printf "\n%d of %d bars of sockets held; %s\n", held, bars, room()
}
