# histogram.awk: one-way latency as text on stdout and as SVG in the file -v svg=FILE, from the `hist LOW HIGH COUNT`
# lines of results.tsv, all runs together. Both axes are logarithmic: time, and share of the packets. Which cases:
# -v cases="CASE CASE ..." -v texts="NAME|NAME|...", at most four.

BEGIN {
	if (cases == "") {
		cases = "ping/raw ping/ring ping/kernel-spin ping/kernel-block"
		texts = "raw AF_XDP|ring on xdp|kernel, spinning|kernel, blocking"
	}
	series = split(cases, names, " ")
	split(texts, text_of, "|")
	split("#888888 #1f6fb4 #d9822b #b03030", colors, " ")
	per_decade = 20; first_ns = 500; decades = 4 # 0.5 us to 5 ms
	bins = per_decade * decades
	for (i = 1; i <= series; i++) index_of[names[i]] = i
}

function log10(x) { return log(x) / log(10) }

$3 == "hist" && ($2 in index_of) {
	i = index_of[$2]
	b = int(log10(($4 + $5) / 2 / first_ns) * per_decade)
	if (b < 0) b = 0
	if (b >= bins) b = bins - 1
	count[i, b] += $6
	total[i] += $6
}

function share(i, b) { return total[i] ? count[i, b] / total[i] : 0 }

function usec(b) { return first_ns * exp(log(10) * b / per_decade) / 1000 }

# The first and the last bin that a bar is drawn for.
function used_edge(b, step,   i) {
	for (; b >= 0 && b < bins; b += step)
		for (i = 1; i <= series; i++) if (share(i, b) >= 1e-4) return b
	return 0
}

# One character for a hundredth of a percent, and one for each factor of two above it.
function bar(x,   n, s) {
	n = x < 1e-4 ? 0 : int(log(x / 1e-4) / log(2)) + 1
	while (n-- > 0) s = s "#"
	return s
}

function text_out(   b, i, last) {
	last = used_edge(bins - 1, -1)
	printf "\nOne way, share of the packets: the first # stands for 0.01 %%, each more doubles it\n%11s", "us"
	for (i = 1; i <= series; i++) if (total[i]) printf "  %-16s", text_of[i]
	printf "\n"
	for (b = used_edge(0, 1); b <= last; b += 2) {
		printf "%11.2f", usec(b)
		for (i = 1; i <= series; i++) if (total[i]) printf "  %-16s", bar(share(i, b) + share(i, b + 1))
		printf "\n"
	}
}

function x_of(b) { return 70 + b * 700 / bins }
function y_of(s) { return s < 1e-5 ? 400 : 400 - (log10(s) + 5) * 72 }

function svg_axes(   d, y) {
	for (d = 0; d <= decades; d++) {
		printf "<line x1='%.1f' y1='40' x2='%.1f' y2='400' stroke='#dddddd'/>", x_of(d * per_decade), x_of(d * per_decade) >svg
		printf "<text x='%.1f' y='418' text-anchor='middle'>%g</text>\n", x_of(d * per_decade), usec(d * per_decade) >svg
	}
	for (d = -5; d <= 0; d++) {
		y = 400 - (d + 5) * 72
		printf "<line x1='70' y1='%d' x2='770' y2='%d' stroke='#dddddd'/>", y, y >svg
		printf "<text x='62' y='%d' text-anchor='end'>%g %%</text>\n", y + 4, 100 * exp(log(10) * d) >svg
	}
	print "<text x='420' y='440' text-anchor='middle'>one way, microseconds</text>" >svg
}

function svg_series(i,   b) {
	printf "<path fill='none' stroke='%s' stroke-width='1.8' d='M70 400", colors[i] >svg
	for (b = 0; b < bins; b++)
		printf " L%.1f %.1f L%.1f %.1f", x_of(b), y_of(share(i, b)), x_of(b + 1), y_of(share(i, b)) >svg
	print "'/>" >svg
	printf "<text x='640' y='%d' fill='%s'>%s</text>\n", 44 + 18 * i, colors[i], text_of[i] >svg
}

function svg_out(   i) {
	print "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 800 450' font-family='sans-serif' font-size='12'>" >svg
	print "<rect width='800' height='450' fill='white'/>" >svg
	print "<text x='70' y='24' font-size='15'>One-way latency of a 64-byte packet between two processes</text>" >svg
	svg_axes()
	for (i = 1; i <= series; i++) if (total[i]) svg_series(i)
	print "</svg>" >svg
	close(svg)
}

END {
	text_out()
	if (svg != "") svg_out()
}
