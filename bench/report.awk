# report.awk: the tables of `make bench` from results.tsv (RUN CASE KEY VALUE...). Every figure is the median of the
# runs that count (of all runs if none does); every ratio is taken within a run, and then the median of those.

$3 == "valid" { counts[$1] = 1; valid_runs++ }
$3 != "hist" { value[$1, $2, $3] = $4; seen[$2] = 1; if ($1 > runs) runs = $1 }

function median(list, n,   i, j, t) {
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && list[j - 1] > list[j]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
	return n == 0 ? -1 : n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

# Median of KEY of CASE; with BASE, of its ratio to the same key of that case in the same run. -1: not measured.
function figure(name, key, base,   run, n, list) {
	n = 0
	for (run = 1; run <= runs; run++) {
		if (valid_runs && !(run in counts) || !((run, name, key) in value)) continue
		if (base != "" && !(value[run, base, key] > 0)) continue
		list[++n] = value[run, name, key] / (base == "" ? 1 : value[run, base, key])
	}
	return median(list, n)
}

function total(name, key,   run, sum) {
	for (run = 1; run <= runs; run++) sum += value[run, name, key]
	return sum + 0
}

function verdict(ratio, sign, bar) {
	if (ratio < 0 || bar == "") return ""
	bars++
	if (sign == "<=" ? ratio <= bar : ratio >= bar) { held++; return sprintf("%s %.2f held", sign, bar) }
	return sprintf("%s %.2f NOT HELD", sign, bar)
}

# The proof: packets that the kernel's UDP saw, of those that went through the interfaces.
function proof(name,   all) {
	all = total(name, "interface_packets")
	return all == 0 ? "-" : sprintf("%d of %d", total(name, "kernel_packets"), all)
}

function latency(name, text, bar,   ratio) {
	if (!(name in seen)) return
	ratio = figure(name, "near_p50_ns", "ping/raw")
	printf "  %-34s %8.2f %8.2f %8.2f %8.2f   %-16s %s\n", text, figure(name, "near_p50_ns") / 1000,
		figure(name, "near_p99_ns") / 1000, figure(name, "near_p99.9_ns") / 1000, ratio,
		verdict(ratio, "<=", bar), proof(name)
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
		for (i = 1; i <= 4; i++) printf "%s%s", (i > 1 ? ", " : ""), verdict(ratios[i], ">=", bar)
	}
	printf "\n"
}

END {
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

	ratio = figure("ping/raw", "near_p50_ns", "ping/kernel-spin")
	printf "\n%d of %d bars held. Raw AF_XDP takes %.2f of the spinning kernel's time; ", held, bars, ratio
	if (valid_runs == runs) printf "all %d runs count (at most 0.40).\n", runs
	else if (valid_runs) printf "%d of %d runs count (at most 0.40), the others are left out.\n", valid_runs, runs
	else printf "NO RUN COUNTS (more than 0.40): the figures are of all %d.\n", runs
}
