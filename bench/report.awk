# report.awk: the tables about the packet path; after report_figures.awk.

function judged(ratio, sign, bar) {
	if (ratio < 0 || bar == "") return ""
	bars++
	if (sign == "<=" ? ratio <= bar : ratio >= bar) { held++; return sprintf("%s %.2f held", sign, bar) }
	return sprintf("%s %.2f NOT HELD", sign, bar)
}

function latency(name, text, bar,   ratio) {
	if (!(name in seen)) return
	ratio = figure(name, "near_p50_ns", "ping/raw")
	printf "  %-34s %8.2f %8.2f %8.2f %8.2f   %-16s %s\n", text, figure(name, "near_p50_ns") / 1000,
		figure(name, "near_p99_ns") / 1000, figure(name, "near_p99.9_ns") / 1000, ratio,
		judged(ratio, "<=", bar), proof(name)
}

function rate(name, text, bar,   i, full, base, ratio, pps, line, none) {
	none = 1
	for (i = 1; i <= 4; i++) {
		full = sizes[i] "/" name; base = sizes[i] "/raw"
		if (!(full in seen)) { line = line sprintf(" %9s", "-"); ratio = -1 } else {
			none = 0
			pps = figure(full, "far_pps")
			ratio = figure(full, "far_pps", base)
			line = line sprintf(" %9.0f", pps / 1000)
			kernel[name] += total(full, "kernel_packets"); through[name] += total(full, "interface_packets")
		}
		ratios[i] = ratio
	}
	if (none) return
	printf "  %-34s%s   %s\n", text, line, through[name] ? kernel[name] " of " through[name] : "-"
	if (name == "raw") return
	line = ""
	for (i = 1; i <= 4; i++) line = line (ratios[i] < 0 ? sprintf(" %9s", "") : sprintf(" %9.2f", ratios[i]))
	printf "  %-34s%s", "    x raw", line
	if (bar != "") {
		printf "   "
		for (i = 1; i <= 4; i++) printf "%s%s", (i > 1 ? ", " : ""), judged(ratios[i], ">=", bar)
	}
	printf "\n"
}

function scaling(how, text, bar) {
	printf "  %-34s %9.0f %9.0f %9.2f   %s\n", text, figure("threads-1/" how, "pps") / 1000,
		figure("threads-2/" how, "pps") / 1000, figure("threads-2/" how, "pps", "threads-1/" how),
		judged(figure("threads-2/" how, "pps", "threads-1/" how), ">=", bar)
}

END {
	if (!("rate-64-1" in table)) exit
	printf "\nOne way of a 64-byte packet, two processes on two cores (half a round trip), microseconds\n"
	printf "  %-34s %8s %8s %8s %8s   %-16s %s\n", "", "p50", "p99", "p99.9", "x raw", "bar", "seen by the kernel's UDP"
	latency("ping/cacheline", "one cache line, nothing else")
	latency("ping/wire", "ring on wire")
	latency("ping/raw", "raw AF_XDP")
	latency("ping/ring", "ring on xdp", 1.15)
	latency("ping/ring-vmad", "ring on xdp, client of vmad", 1.15)
	latency("ping/kernel-spin", "kernel sockets, spinning")
	latency("ping/kernel-block", "kernel sockets, blocking")

	split("rate-64-1 rate-64-64 rate-1514-1 rate-1514-64", sizes, " ")
	printf "\nThousands of packets per second, counted by the receiver\n"
	printf "  %-34s %9s %9s %9s %9s\n", "bytes of a frame", 64, 64, 1514, 1514
	printf "  %-34s %9s %9s %9s %9s   %s\n", "packets per kick", 1, 64, 1, 64, "seen by the kernel's UDP"
	rate("raw", "raw AF_XDP")
	rate("ring", "ring on xdp", 0.9)
	rate("ring-vmad", "ring on xdp, client of vmad", 0.9)
	rate("wire", "ring on wire")
	rate("kernel-spin", "kernel sockets, spinning")

	printf "\nThousands of packets per second of processor time; each thread has a link and rings of its own\n"
	printf "  %-34s %9s %9s %9s\n", "threads, each on its core", 1, 2, "2 : 1"
	scaling("wire", "rings on a wire", 1.7)
	scaling("xdp", "rings on xdp, over a veth")

	printf "\n%d of %d bars of the packet path held; %s\n", held, bars, room()
}
