# report_figures.awk: what the tables of `make bench` are made with, from results.tsv (RUN CASE KEY VALUE...).
# Every figure is the median of the runs; every ratio is one of medians, for a run has not measured both at one distance
# of the cores (distances.awk).

$3 != "hist" { value[$1, $2, $3] = $4; seen[$2] = 1; table[$2 ~ "/" ? substr($2, 1, index($2, "/") - 1) : ""] = 1; if ($1 > runs) runs = $1 }

function median(list, n,   i, j, t) {
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && list[j - 1] > list[j]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
	return n == 0 ? -1 : n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

# A figure of the library is one only where the kernel did not do the work.
function is_bypassed(name) {
	return name !~ /\/(lib|latency)$/ || total(name, "kernel_packets") <= 0.02 * total(name, "interface_packets")
}

# Median of KEY of CASE; with BASE, the ratio of that to the median of BASE's. -1: not measured. The least number of
# measurements that it rests on is in rests_on.
function figure(name, key, base,   of_base) {
	if (base != "") {
		of_base = middle(base, key)
		rests_on_base = rests_on
	}
	name = middle(name, key)
	if (base == "") return name
	if (rests_on_base < rests_on) rests_on = rests_on_base
	return name < 0 || of_base <= 0 ? -1 : name / of_base
}

function middle(name, key,   run, n, list) {
	n = 0
	if (is_bypassed(name))
		for (run = 1; run <= runs; run++) if ((run, name, key) in value) list[++n] = value[run, name, key]
	rests_on = n
	return median(list, n)
}

function total(name, key,   run, sum) {
	for (run = 1; run <= runs; run++) sum += value[run, name, key]
	return sum + 0
}

# A median for a column: "-" where there is none.
function show(format, width, x) { return x < 0 ? sprintf("%" width "s", "-") : sprintf("%" width format, x) }

function inverse(x) { return x > 0 ? 1 / x : -1 }

function verdict(text, ratio, sign, bar) {
	bars++
	if (ratio < 0) { printf "    %-64s not measured\n", text; return }
	if (sign == "<=" ? ratio <= bar : ratio >= bar) held++
	printf "    %-64s %8.2f  %s %-5g %-8s of %d\n", text, ratio, sign, bar,
		(sign == "<=" ? ratio <= bar : ratio >= bar) ? "held" : "NOT held", rests_on
}

function proof(name,   all) {
	all = total(name, "interface_packets")
	return all == 0 ? "-" : sprintf("%d of %d", total(name, "kernel_packets"), all)
}

# The bars beside the kernel are for a machine whose kernel leaves that much room.
function room(   ratio) {
	ratio = figure("ping/raw", "near_p50_ns", "ping/kernel-spin")
	return sprintf("raw AF_XDP takes %.2f of the spinning kernel's time", ratio) \
		(ratio <= 0.4 ? "." : ":\nMORE THAN 0.40, SO BY THE RULE NONE OF THESE RUNS COUNTS.")
}
