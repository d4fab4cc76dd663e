#!/usr/bin/env bash
# Programs that listen on `::` and connect by AF_INET6 sockets, as they come: iperf3, node, java, preloaded. What goes by
# IPv4 goes past the kernel's TCP; clients that come by IPv6 at the same time are served by the same listener.
# seconds: 40
# test-all: it starts node and java many times; parity.sh has the calls
. "$(dirname "$0")/../lib_programs.sh"
net_pair
for name in a b; do
	in_ns $name sh -c 'for i in all default lo; do echo 0 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done'
done
ip -n "$(ns a)" addr add fd00::1/64 dev "$IF_A" nodad
ip -n "$(ns b)" addr add fd00::2/64 dev "$IF_B" nodad
wait_for 5 in_ns a ip -6 route get fd00::2 || cannot_run "no IPv6 between the namespaces"
file=$(payload 3000000)
wanted=$(sum_of "$file")

cat >"$WORK/server.js" <<'JS'
const http = require('http'), fs = require('fs');
const server = http.createServer((request, response) => {
	if (request.url === '/who') response.end(request.socket.remoteAddress + ' ' + request.socket.localAddress);
	else fs.createReadStream(process.argv[2]).pipe(response);
});
server.listen(8101, () => console.log('listening on ' + server.address().address));
JS
cat >"$WORK/Server.java" <<'JAVA'
import com.sun.net.httpserver.*;
import java.net.*;
import java.nio.file.*;
public class Server {
	public static void main(String[] args) throws Exception {
		HttpServer server = HttpServer.create(new InetSocketAddress(8102), 0);
		server.createContext("/who", e -> {
			byte[] who = (e.getRemoteAddress().getAddress().getHostAddress() + " " +
				e.getLocalAddress().getAddress().getHostAddress()).getBytes();
			e.sendResponseHeaders(200, who.length);
			e.getResponseBody().write(who);
			e.close();
		});
		server.createContext("/", e -> {
			byte[] bytes = Files.readAllBytes(Path.of(args[0]));
			e.sendResponseHeaders(200, bytes.length);
			e.getResponseBody().write(bytes);
			e.close();
		});
		server.start();
		System.out.println("listening");
	}
}
JAVA
cat >"$WORK/Fetch.java" <<'JAVA'
import java.net.*;
public class Fetch {
	public static void main(String[] args) throws Exception {
		for (String url : args) new URI(url).toURL().openStream().transferTo(System.out);
	}
}
JAVA

fetch() { # ADDRESS PORT: curl's
	client curl -gsf --max-time 20 "http://$1:$2/file" | sum
}
fetch_java() {
	client java -cp "$WORK" Fetch "http://$IP_B:$1/file" 2>"$WORK/fetch.err" | sum
}
who() { # ADDRESS PORT
	client curl -gsf --max-time 20 "http://$1:$2/who"
}
# Both kinds at once, several of each.
both_kinds() { # PORT
	local i
	for i in 1 2 3 4; do
		fetch "$IP_B" "$1" >"$WORK/four.$i" &
		four[i]=$!
		fetch "[fd00::2]" "$1" >"$WORK/six.$i" &
		six[i]=$!
	done
	for i in 1 2 3 4; do wait "${four[i]}" && wait "${six[i]}"; done
	for i in 1 2 3 4; do
		[ "$(cut -d' ' -f1 "$WORK/four.$i")" = "$wanted" ] && [ "$(cut -d' ' -f1 "$WORK/six.$i")" = "$wanted" ] || return
	done
}
four=() six=()

http_server() { # NAME PORT ADDRESSES COMMAND...
	local name=$1 port=$2 addresses=$3 i
	shift 3
	serve server "$@"
	check "$where, $name: it listens" wait_for 30 log_has server listening
	count_from
	for i in 1 2 3; do
		check_eq "$where, $name: a client by IPv4 gets every byte ($i)" "$(fetch "$IP_B" "$port")" "$wanted"
	done
	check_eq "$where, $name: both addresses are what they are" "$(who "$IP_B" "$port")" "$addresses"
	still "$where, $name"
	check_eq "$where, $name: a client by IPv6 gets every byte" "$(fetch "[fd00::2]" "$port")" "$wanted"
	check_eq "$where, $name: and its address" "$(who "[fd00::2]" "$port" | sed 's/:0:0:0:0:0:0:/::/g')" "fd00::1 fd00::2"
	check "$where, $name: eight at once, by both" both_kinds "$port"
	check "$where, $name: the server still runs" alive server
}

javac -d "$WORK" "$WORK/Server.java" "$WORK/Fetch.java" || cannot_run "no java"
for combination in both server; do
	combination $combination || continue
	http_server node 8101 "::ffff:$IP_A ::ffff:$IP_B" node "$WORK/server.js" "$file"
	settle
	count_from
	check_eq "$where, node: java, which connects by AF_INET6 sockets, gets every byte" "$(fetch_java 8101)" "$wanted"
	still "$where, java's client"
	stop server
	http_server java 8102 "$IP_A $IP_B" java -cp "$WORK" Server "$file"
	stop server
	settle
	for how in "" "-R" "--bidir" "-P 4"; do
		serve iperf iperf3 -s -1 --forceflush
		check "$where, iperf3 $how: it listens" wait_for 20 listens 5201
		count_from
		# shellcheck disable=SC2086 # options
		check "$where, iperf3 $how: the client ends well" client iperf3 -c "$IP_B" -t 1 $how
		check "$where, iperf3 $how: so does the server" finish iperf 20
		still "$where, iperf3 $how" 3 # of the server's end
	done
	serve iperf iperf3 -s -1 --forceflush
	check "$where, iperf3 -u: it listens" wait_for 20 listens 5201
	datagrams=$(snmp b Udp InDatagrams)
	check "$where, iperf3 -u: the client ends well" client iperf3 -c "$IP_B" -u -b 20M -t 1
	check "$where, iperf3 -u: so does the server" finish iperf 20
	[ -n "$kernel" ] ||
		check_num "$where, iperf3 -u: the kernel saw few of its datagrams" $(($(snmp b Udp InDatagrams) - datagrams)) -le 3
	serve iperf iperf3 -s -1 --forceflush
	check "$where, iperf3 by IPv6: it listens" wait_for 20 listens 5201
	check "$where, iperf3 by IPv6: the client ends well" client iperf3 -6 -c fd00::2 -t 1
	check "$where, iperf3 by IPv6: so does the server" finish iperf 20
	settle
done
done_testing
