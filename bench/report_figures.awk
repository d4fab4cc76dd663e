# report_figures.awk: what the tables of `make bench` are made with, from results.tsv (RUN CASE KEY VALUE...).
# Every figure is the median of the runs that count (of all runs if none does); every ratio is taken within a run, and
# then the median of those.

$3 == "valid" { counts[$1] = 1; valid_runs++ }
$3 != "hist" { value[$1, $2, $3] = $4; seen[$2] = 1; if ($1 > runs) runs = $1 }

function median(list, n,   i, j, t) {
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && list[j - 1] > list[j]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
	return n == 0 ? -1 : n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

# A figure of the library is one only where the kernel did not do the work.
function is_bypassed(name) {
	return name !~ /\/(lib|latency)$/ || total(name, "kernel_packets") <= 0.02 * total(name, "interface_packets")
}

# Median of KEY of CASE; with BASE, of its ratio to the same key of that case in the same run. -1: not measured.
function figure(name, key, base,   run, n, list) {
	n = 0
	if (!is_bypassed(name)) return -1
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

# A median for a column: "-" where there is none.
function show(format, width, x) { return x < 0 ? sprintf("%" width "s", "-") : sprintf("%" width format, x) }

function inverse(x) { return x > 0 ? 1 / x : -1 }

function verdict(text, ratio, sign, bar) {
	bars++
	if (ratio < 0) { printf "    %-64s not measured\n", text; return }
	if (sign == "<=" ? ratio <= bar : ratio >= bar) held++
	printf "    %-64s %8.2f  %s %-5g %s\n", text, ratio, sign, bar,
		(sign == "<=" ? ratio <= bar : ratio >= bar) ? "held" : "NOT held"
}

function proof(name,   all) {
	all = total(name, "interface_packets")
	return all == 0 ? "-" : sprintf("%d of %d", total(name, "kernel_packets"), all)
}
