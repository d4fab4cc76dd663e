# shellcheck shell=bash
# Cards made of software (tests/verbs), for the scripts of tests/e2e. After `cards_pair` there are two namespaces, a card
# in each, and a wire between them:
#
#   a  vs_a 10.9.0.1 ---- card vmasoft0 ---- wire ---- card vmasoft1 ---- 10.9.0.2 vs_b  b
#
# `"${with_cards[@]}" COMMAND...` is how a command sees both as InfiniBand devices: `check "..." in_ns a
# "${with_cards[@]}" ibv_devinfo`. `card a COMMAND` asks the card of a (card --control).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck disable=SC2034 # for the scripts
CARD=$BUILD/tests/verbs/card TREE=$WORK/tree
export VERBS_CARD=$CARD BUILD
# shellcheck disable=SC2034
with_cards=("$ROOT/tests/verbs/with_card" "$TREE")

card_start() { # NAMESPACE INDEX ADDRESS WIRE...: waits until it is ready
	local name=$1 index=$2 ip=$3 upper=${1^^}
	shift 3
	mkdir -p "$TREE"
	start "card_$name" "$name" "$CARD" --socket "$WORK/card_$name" --sysfs "$TREE" --tap "vs_$name" \
		--name "vmasoft$index" --index "$index" "$@"
	wait_for 10 log_has "card_$name" "is ready" || return
	ip -n "$(ns "$name")" addr add "$ip/24" dev "vs_$name"
	ip -n "$(ns "$name")" link set "vs_$name" up
	declare -g "IP_$upper=$ip" "IF_$upper=vs_$name" "MAC_$upper=$(in_ns "$name" cat "/sys/class/net/vs_$name/address")"
}

cards_pair() {
	ns_add a && ns_add b && card_start a 0 10.9.0.1 --wire-listen "$WORK/wire" &&
		card_start b 1 10.9.0.2 --wire "$WORK/wire" || cannot_run "the cards do not start"
	ip -n "$(ns a)" neigh replace "$IP_B" lladdr "$MAC_B" dev "$IF_A" nud permanent
	ip -n "$(ns b)" neigh replace "$IP_A" lladdr "$MAC_A" dev "$IF_B" nud permanent
}

cards_end() {
	stop card_b
	stop card_a
	ns_del b
	ns_del a
	rm -rf "$TREE" "$WORK/wire" "$WORK"/card_[ab]
}

card() { # NAMESPACE COMMAND
	"$CARD" --control "$WORK/card_$1" "$2"
}

card_count() { # NAMESPACE COUNTER
	card "$1" show | awk -v name="$2" '$1 == name { print $2 }'
}
