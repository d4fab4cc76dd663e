# distances.awk: parts results.tsv (RUN CASE KEY VALUE...) by how far the two cores were from each other meanwhile, as
# `cacheline watch` saw it: to the files "close" and "apart" in the folder of -v out=FOLDER. Prints a line for each that
# there is: its name, nanoseconds of a cache line (median), measurements taken at it and in all.
#
# A machine whose looks differ by less than a factor of two has one distance, "close". What was measured while the
# distance changed belongs to neither, and is left out; what was measured without a watch (idle processes, start-up)
# belongs to both.

{ line[NR] = $0; of[NR] = $1 SUBSEP $2 }
$3 == "line_ns" { median[$1, $2] = $4; if (least == "" || $4 < least) least = $4; if ($4 > most) most = $4; all++ }
$3 == "line_low_ns" { low[$1, $2] = $4 }
$3 == "line_high_ns" { high[$1, $2] = $4 }
$3 == "line_looks" { watched[$1, $2] = 1 }

function side(key) {
	if (!two || !(key in watched)) return "both"
	if (!(key in median)) return "neither"
	if (high[key] < border) return "close"
	return low[key] >= border ? "apart" : "neither"
}

function middle(name,   key, n, i, j, t, list) {
	for (key in median) if (side(key) == name || !two) list[++n] = median[key]
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && list[j - 1] > list[j]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
	if (n > 0) print name, list[int((n + 1) / 2)], n, all
}

END {
	two = most >= 2 * least
	border = sqrt(least * most)
	for (i = 1; i <= NR; i++) {
		at = side(of[i])
		if (at == "close" || at == "both") print line[i] >(out "/close")
		if (at == "apart" || at == "both" && two) print line[i] >(out "/apart")
	}
	middle("close")
	if (two) middle("apart")
}
