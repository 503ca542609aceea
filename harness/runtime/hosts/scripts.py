"""What is run on a host: POSIX shell scripts, made of a node's place and an action. Pure.

Each is given to `sh -s` as a whole and does nothing until it is whole: it is one function, called
in its last line. Each may be run again where it was run already. They need, beside the tools of
POSIX, /proc, setsid, and as root or by `sudo -n`: for links nft or iptables, for losses of power
mkfs.ext4, a loop device, perl, and Linux 6.5, which tells what is not synced.

A node is a shell that starts its program in a session of its own and writes down, before that, its
pid and its start time: together they name one process, since pids are reused. What the program
starts has the node's mark in its environment, wherever it moves to.

Source: jepsen.control.util (start-daemon!, stop-daemon!), proc(5), nft(8);
EXT4_IOC_SHUTDOWN of ext4; cachestat(2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

MARK: Final = "SHAKETABLE_NODE"
"""The environment variable of a node's processes."""
STOP_GRACE_S: Final = 5
"""How long a node may take to end when it is asked to; then it is killed."""
ROUNDS_MAX: Final = 60
"""A signal is sent again so often, each 50 ms, until it has shown its effect."""
LOG_BYTES_MAX: Final = 256 << 20
"""So much of the end of a node's output is fetched."""
_IOC_SHUTDOWN: Final = 0x8004587D
_GOING_NOLOGFLUSH: Final = 2
"""EXT4_IOC_SHUTDOWN, and its flag: the journal is not flushed."""
LOCKED_MAX_S: Final = 10
"""How long a script waits for another one that has to do with the same disk."""
UNSYNCED_WITHIN_S: Final = 2
"""How long is waited for a moment at which a node has something that is not synced."""
_CACHESTAT: Final = 451
_COUNTED: Final = re.compile(r"chain from_(\w+) \{|counter packets \d+ bytes (\d+)")
_COUNTED_BY_IPTABLES: Final = re.compile(
    r"^ *\d+ +(\d+) DROP .*/\* shaketable_[a-z0-9]+_(\w+)_ \*/", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node of a run lives on its host.

    Attributes:
        folder: the folder of all runs there.
        run: the run's name: letters and digits, as no other run's.
        node: the node's id.
        disk_gib: the size of the file system that its data lies on, which can lose power; 0: none.
    """

    folder: str
    run: str
    node: str
    disk_gib: int = 0

    @property
    def run_directory(self) -> str:
        """The run's folder."""
        return f"{self.folder.rstrip('/')}/{self.run}"

    @property
    def directory(self) -> str:
        """The node's folder."""
        return f"{self.run_directory}/{self.node}"

    @property
    def mark(self) -> str:
        """What is in the environment of the node's processes, and of no others."""
        return f"{self.run}.{self.node}."

    @property
    def table(self) -> str:
        """The table of the packet filter with what this run cuts."""
        return f"shaketable_{self.run}"


_LIBRARY: Final = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
fail() { printf '%s\n' "$*" >&2; exit 1; }
nap() { sleep 0.05 2>/dev/null || sleep 1; }
root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n -- "$@"; fi; }
stat_of() {  # the fields of a process from its state on; none if it is gone
    text=$(cat "/proc/$1/stat" 2>/dev/null) && printf '%s' "${text##*) }"
}
began() {  # when a process started, in ticks since the boot
    set -- $(stat_of "$1")
    case ${1:-Z} in Z|X) return 1 ;; esac
    printf '%s' "${20}"
}
leader() {  # the pid of the node's shell, while it lives: also its group's
    { read -r pid at boot < "$dir/pid"; } 2>/dev/null || return 1
    [ "$(began "$pid")" = "$at" ] && printf '%s' "$pid"
}
group_of() {  # the node's group, also when its shell is gone: its pid is not used again meanwhile
    { read -r pid at boot < "$dir/pid"; } 2>/dev/null || return 1
    [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] || return 1
    if text=$(cat "/proc/$pid/stat" 2>/dev/null); then
        set -- ${text##*) }
        [ "${20}" = "$at" ] || return 1
    fi
    printf '%s' "$pid"
}
members() {  # the pids of the node's group
    group=$(group_of) || return 0
    cat /proc/[0-9]*/stat 2>/dev/null | sed 's/^\([0-9]*\) (.*) /\1 /' |
        awk -v group="$group" '$4 == group && $2 != "Z" && $2 != "X" { print $1 }'
}
marked() {  # the pids of what the node has started
    grep -lF "$mark_name=$mark" /proc/[0-9]*/environ 2>/dev/null |
        sed 's|^/proc/||; s|/environ$||'
}
signal() {  # send a signal to all of the node's processes; print them
    ours=$(members)
    [ -z "$ours" ] || send "$1" "-$(group_of)"
    others=$(marked)
    for each in $others; do send "$1" "$each"; done
    printf '%s' "$(echo $ours $others)"
}
send() {  # to a process, or to a group; as root if it is not ours
    kill -s "$1" -- "$2" 2>/dev/null ||
        { [ "$(id -u)" != 0 ] && command -v sudo >/dev/null && root kill -s "$1" -- "$2"; }
}
running() {  # those of these processes that live and are not stopped
    for each in "$@"; do
        set -- $(stat_of "$each")
        case ${1:-X} in T|t|Z|X) ;; *) printf '%s ' "$each" ;; esac
    done
}
stopped() {  # those of these processes that are stopped
    for each in "$@"; do
        set -- $(stat_of "$each")
        case ${1:-X} in T|t) printf '%s ' "$each" ;; esac
    done
}
"""

_NODE: Final = r"""
stat=$(cat "/proc/$$/stat") || exit
at() { printf '%s' "${20}"; }
printf '%s %s %s\n' "$$" "$(at ${stat##*) })" "$(cat /proc/sys/kernel/random/boot_id)" > pid.new
mv pid.new pid || exit
trap : TERM
"$@"
printf '%s\n' "$?" > ended.new && mv ended.new ended
"""
"""The shell of a node: it waits for the program, also when both are asked to end."""


def check(place: Place, program: str, ports: Sequence[int]) -> str:
    """Look whether a node can run there; print who runs it, from where, and what cannot be done."""
    return _script(
        place,
        _disk(place),
        f"""
    [ -r /proc/self/stat ] || fail "there is no /proc: it is no Linux"
    for tool in setsid grep sed awk tail; do
        command -v "$tool" >/dev/null || fail "$tool is not there (util-linux has setsid)"
    done
    mkdir -p {quote(place.folder)} 2>/dev/null && [ -w {quote(place.folder)} ] ||
        fail {quote(place.folder)}": $(id -un) cannot write there; set hosts.folder"
    command -v {quote(program)} >/dev/null ||
        fail {quote(f"{program}: no such program there; install it, or give its path in start")}
    for port in {" ".join(map(str, ports))}; do
        hex=$(printf '%04X' "$port")
        ! cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
            grep -q "^ *[0-9]*: [0-9A-F]*:$hex [0-9A-F]*:0000 0A" ||
            fail "port $port is in use there; end what has it (ss -ltnp 'sport = :$port' tells;" \\
                "shaketable heal, if a killed run left it) or set hosts.client_port, peer_port"
    done
    printf 'user %s\\n' "$(id -un)"
    printf 'from %s\\n' "${{SSH_CONNECTION%% *}}"
    {"try_disk" if place.disk_gib else ":"}
    if command -v nft >/dev/null; then list='nft list tables'
    elif command -v iptables >/dev/null; then list='iptables -w -nL INPUT'
    else printf "links nft is not there: install nftables\\n"; return
    fi
    why=$(root $list 2>&1 >/dev/null) ||
        printf 'links %s\\n' "${{list%% *}}: $(printf '%s' "$why" | tail -n 1)"
    """,
    )


def start(place: Place, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Start the node, unless it runs. Its output goes to a file there."""
    marked = {**env, MARK: place.mark}
    settings = " ".join(quote(f"{name}={text}") for name, text in marked.items())
    return _script(
        place,
        _disk(place),
        f"""
    mkdir -p "$dir" && cd "$dir" || fail "cannot make $dir"
    {"lock_disk" if place.disk_gib else ":"}
    ! leader >/dev/null || return 0
    {_KILL + "; renew_disk" if place.disk_gib else "mkdir -p data || fail cannot make $dir/data"}
    rm -f pid ended
    [ -z "$(tail -c 1 node.log 2>/dev/null)" ] || echo >> node.log  # a killed node left half a line
    printf -- '--- shaketable: %s starts at %s\\n' {quote(place.node)} "$(date)" >> node.log
    setsid env {settings} sh -c {quote(_NODE)} sh {" ".join(map(quote, argv))} \\
        </dev/null >>node.log 2>&1 9>&- &
    tries=0
    until [ -e pid ] || [ "$tries" -gt {ROUNDS_MAX} ]; do tries=$((tries + 1)); nap; done
    [ -e pid ] || fail "the node did not start: $(tail -n 1 node.log)"
    """,
    )


def kill(place: Place) -> str:
    """Kill all of the node's processes; print "killed" if there were any."""
    return _script(place, _KILL + "\n    printf '%s\\n' \"$found\"")


_KILL: Final = f"""
    found= tries=0
    while struck=$(signal KILL); [ -n "$struck" ]; do
        found=killed tries=$((tries + 1))
        [ "$tries" -le {ROUNDS_MAX} ] || fail "process $struck does not end, even by SIGKILL"
        nap
    done"""


_PAUSE: Final = f"""
    tries=0
    while struck=$(signal STOP); awake=$(running $struck); [ -n "$awake" ]; do
        tries=$((tries + 1))
        [ "$tries" -le {ROUNDS_MAX} ] || fail "process $awake does not stop"
        nap
    done"""


def stop(place: Place) -> str:
    """Ask the node to end, and kill what has not ended in time; print "killed" if it ran."""
    return _script(place, _STOP + _KILL + "\n    printf '%s\\n' \"$asked$found\"")


_STOP: Final = f"""
    asked= tries=0
    if leader >/dev/null; then asked=stopped; signal CONT >/dev/null; signal TERM >/dev/null; fi
    while leader >/dev/null && [ "$tries" -lt {STOP_GRACE_S * 20} ]; do
        tries=$((tries + 1)); nap
    done"""


def pause(place: Place) -> str:
    """Stop all of the node's processes; print "paused" when the kernel shows them as stopped."""
    return _script(
        place,
        f"""
    leader >/dev/null || return 0{_PAUSE}
    printf 'paused\\n'""",
    )


def resume(place: Place) -> str:
    """Let all of the node's processes go on."""
    return _script(
        place,
        f"""
    tries=0
    while struck=$(signal CONT); held=$(stopped $struck); [ -n "$held" ]; do
        tries=$((tries + 1))
        [ "$tries" -le {ROUNDS_MAX} ] || fail "process $held stays stopped"
        nap
    done""",
    )


def state(place: Place) -> str:
    """Print "running", "paused", "gone", or "ended" with the exit status; then its last line."""
    return _script(
        place,
        """
    if group=$(leader); then
        if [ -n "$(running $group)" ]; then echo running; else echo paused; fi
    elif [ -r "$dir/ended" ]; then printf 'ended %s\\n' "$(cat "$dir/ended")"
    else echo gone
    fi
    tail -n 1 "$dir/node.log" 2>/dev/null || :""",
    )


def end(place: Place, *, gently: bool, with_links: bool) -> str:
    """End the node, and what the run cuts on its host; print what there was to be ended.

    Args:
        place: the node's.
        gently: whether the node is asked first.
        with_links: whether links could be cut there.
    """
    asked = _STOP if gently else "    asked="
    return _script(
        place,
        _LINKS,
        f"""{asked}{_KILL}
    [ -z "$asked$found" ] || printf 'its processes\\n'{_UNCUT if with_links else ""}""",
    )


def log(place: Place) -> str:
    """Print the node's output."""
    return _script(
        place, f'    [ ! -e "$dir/node.log" ] || tail -c {LOG_BYTES_MAX} "$dir/node.log"'
    )


def data(place: Place) -> str:
    """Print an archive of the node's data."""
    # Beside the data itself, also where $dir/data is a link.
    return _script(place, '    [ ! -d "$dir/data" ] || tar -C "$dir/data/.." -cf - data')


def remove(place: Place) -> str:
    """Remove what the run has written there."""
    body = f"""
    [ ! -e "$dir/lock" ] || lock_disk
    unmount new
    unmount disk
    rm -rf {quote(place.run_directory)}"""
    return _script(place, _DISK, body)


# ---- power: the node's data lies on an ext4 of its own, in a file on a loop device --------------

_SHUT_DOWN: Final = rf"""
my ($disk, $data, $wait_s, $group, $mark) = @ARGV;
my @files;
open(my $root, "<", $disk) or die "$disk: $!\n";
while (my $name = <STDIN>) {{
    chomp $name;
    if (open(my $file, "<", "$data/$name")) {{ push @files, $file }}
}}
sub unsynced {{  # in pages
    my $pages = 0;
    for my $file (@files, $root) {{
        my ($whole, $found) = (pack("Q2", 0, 0), pack("Q5", 0, 0, 0, 0, 0));
        if (syscall({_CACHESTAT}, fileno $file, $whole, $found, 0) < 0) {{
            die "Linux tells what is not synced from 6.5 on (cachestat: $!)\n";
        }}
        $pages += (unpack "Q5", $found)[1];
    }}
    return $pages;
}}
sub marked {{  # the processes that have left the node's group
    my @found;
    for my $path ($group ? glob "/proc/[0-9]*/environ" : ()) {{
        open(my $file, "<", $path) or next;
        local $/;
        push @found, $path =~ m|/proc/(\d+)/| if index("\0" . <$file>, "\0$mark") >= 0;
    }}
    return @found;
}}
my $until = time + $wait_s;
my ($dirty, @away);
do {{
    @away = marked();
    for (1 .. 200) {{ last if $dirty = unsynced() }}
}} until $dirty or time >= $until;
my $going = pack("L", {_GOING_NOLOGFLUSH});
kill "KILL", -$group, @away if $group;  # first: what lives may acknowledge what is lost
defined(ioctl($root, {_IOC_SHUTDOWN:#x}, $going)) or die "$disk cannot be shut down: $!\n";
for (1 .. 200) {{  # what it had mapped is known as unsynced once it is gone
    last unless $group && (kill(0, -$group) or grep {{ defined readlink "/proc/$_/exe" }} @away);
    select undef, undef, undef, 0.01;
}}
my $left = unsynced();
print $left > $dirty ? $left : $dirty, "\n";
"""
"""In Perl: when something is not synced, kills the node and shuts the file system down at once;
prints how many pages were not synced."""
_DISK: Final = rf"""
lock_disk() {{  # what is done to a disk is done by one script after another
    exec 9>"$dir/lock" && flock -w {LOCKED_MAX_S} 9 || fail "$dir is locked"
}}
unmount() {{
    tries=0
    while mountpoint -q "$dir/$1" 2>/dev/null; do
        why=$(root umount "$dir/$1" 2>&1) || tries=$((tries + 1))
        [ "$tries" -le {ROUNDS_MAX} ] || fail "$dir/$1 cannot be unmounted: $why"
        [ "$tries" = 0 ] || nap
    done
}}
mounted() {{  # a file, at a place
    mkdir -p "$dir/$2" && why=$(root mount -o loop "$dir/$1" "$dir/$2" 2>&1) ||
        fail "$dir/$1 cannot be mounted: $why"
}}
made() {{  # a file with an ext4 of so many MiB
    dd if=/dev/zero of="$dir/$1" bs=1048576 count=0 seek="$2" 2>/dev/null &&
        why=$(mkfs.ext4 -q -F "$dir/$1" 2>&1) || fail "no disk can be made: $why"
}}
renew_disk() {{  # mount it as after a loss of power or a start of the host; make it, if it is not
    unmount new
    unmount disk
    if [ ! -e "$dir/disk.ext4" ]; then
        rm -f "$dir/new.ext4" && made new.ext4 "$mib" && mounted new.ext4 new || return
        root mkdir -p "$dir/new/data" && root chown "$(id -u):$(id -g)" "$dir/new/data" ||
            fail "no folder can be made on the new disk"
        unmount new  # so all is synced
        mv "$dir/new.ext4" "$dir/disk.ext4" || return
    fi
    mounted disk.ext4 disk
    [ -L "$dir/data" ] || {{ rm -rf "$dir/data" && ln -s disk/data "$dir/data"; }} || return
}}
cut() {{  # what Perl says of it: the number of pages that were not synced
    (cd "$1" && root find . -type f -print) |
        root perl -e {quote(_SHUT_DOWN)} "$2" "$1" "$3" "$4" "$mark_name=$mark" 2>&1
}}
try_disk() {{  # print why power cannot be cut here
    for tool in mkfs.ext4 mount umount mountpoint flock getconf perl; do
        command -v "$tool" >/dev/null || {{ echo "power $tool is not there"; return; }}
    done
    why=$(
        dir=$dir.trial
        mkdir -p "$dir" || exit 1
        trap 'root umount "$dir/disk" 2>/dev/null; rm -rf "$dir"' EXIT
        exec 2>&1
        made disk.ext4 8 && mounted disk.ext4 disk || exit 1
        cut "$dir/disk" "$dir/disk" 0 "" >"$dir/said" || {{ cat "$dir/said"; exit 1; }}
    ) || printf 'power %s\n' "$(printf '%s' "$why" | tr -s ' \n' ' ')"
}}
"""


def _disk(place: Place) -> str:
    """Return what a script needs that has to do with the node's disk."""
    return f"{_DISK}mib={place.disk_gib * 1024}\n" if place.disk_gib else ""


def power(place: Place) -> str:
    """Cut the node's power: what it has not synced is lost. Print how much was, if it ran."""
    return _script(
        place,
        _disk(place),
        f"""
    leader >/dev/null || return 0
    lock_disk
    leader >/dev/null || return 0
    pages=$(cut "$dir/disk/data" "$dir/disk" {UNSYNCED_WITHIN_S} "$(group_of)") ||
        fail "power cannot be cut: $pages"{_KILL}
    rm -f "$dir/ended"
    renew_disk
    printf 'lost_bytes %s\\n' "$((pages * $(getconf PAGESIZE)))"
    """,
    )


# ---- links: what other nodes send to this one is dropped where it arrives ----------------------
#
# By a table of nft of the run's own. Where there is no nft, by rules of iptables, which are known
# by their comments.

_LINKS: Final = r"""
has_nft() { command -v nft >/dev/null; }
has_table() {
    tables=$(root nft list tables inet) || fail "nft cannot list its tables"
    case "$tables" in *" $table"*) ;; *) return 1 ;; esac
}
drop() {  # by this tool, what this address of this node sends
    set -- "$1" "$2" "${table}_$3_"
    root "$1" -w -C INPUT -s "$2" -m comment --comment "$3" -j DROP 2>/dev/null ||
        root "$1" -w -I INPUT -s "$2" -m comment --comment "$3" -j DROP || fail "$1 refused"
}
list() {  # the counted rules for a node that begins so
    for tool in iptables ip6tables; do
        ! command -v "$tool" >/dev/null ||
            root "$tool" -w -nvxL INPUT | grep -F "/* ${table}_$1"
    done
}
undrop() {  # delete and print the rules for a node that begins so
    list "$1"
    for tool in iptables ip6tables; do
        command -v "$tool" >/dev/null || continue
        rules=$(root "$tool" -w -S INPUT) || fail "$tool cannot list its rules"
        printf '%s\n' "$rules" | grep -F -- "--comment ${table}_$1" | sed 's/^-A/-D/' |
            while read -r rule; do root "$tool" -w $rule </dev/null || exit 1; done ||
            fail "$tool cannot delete a rule"
    done
}
"""

_UNCUT: Final = """
    if ! has_nft; then
        there=$(undrop "") || exit 1
    elif there=; has_table; then
        there=$table
        root nft delete table inet "$table" || fail "nft cannot delete the table $table"
    fi
    [ -z "$there" ] || printf 'its cut links\\n'"""


def cut(place: Place, sources: Mapping[str, Sequence[str]]) -> str:
    """Drop what arrives from these nodes, each with its IP addresses; count it."""
    rules, drops = [f"add table inet {place.table}"], []
    for node, addresses in sources.items():
        chain = f"inet {place.table} from_{node}"
        rules.append(f"add chain {chain} {{ type filter hook input priority -150; }}")
        rules.append(f"flush chain {chain}")
        for each in addresses:
            is_v6 = ":" in each
            rules.append(f"add rule {chain} {'ip6' if is_v6 else 'ip'} saddr {each} counter drop")
            drops.append(f"drop {'ip6tables' if is_v6 else 'iptables'} {each} {node}")
    by_iptables = "\n        ".join(drops)
    body = f"    if has_nft; then {_nft(rules)}\n    else\n        {by_iptables}\n    fi"
    return _script(place, _LINKS, body)


def heal(place: Place, node: str) -> str:
    """Let through again what a node sends; print what was dropped, see `bytes_dropped`."""
    chain = f"inet {place.table} from_{node}"
    delete = _nft([f"flush chain {chain}", f"delete chain {chain}"])
    body = f"""
    if ! has_nft; then undrop {node}_
    elif has_table && root nft list chain {chain} 2>/dev/null; then {delete}
    fi"""
    return _script(place, _LINKS, body)


def dropped(place: Place) -> str:
    """Print what was dropped; see `bytes_dropped`."""
    body = """
    if ! has_nft; then list "" || :
    elif has_table; then root nft list table inet "$table"
    fi"""
    return _script(place, _LINKS, body)


def bytes_dropped(listing: str) -> dict[str, int]:
    """Return how many bytes were dropped by each sender, from what `dropped` printed."""
    found: dict[str, int] = {}
    node = ""
    for each in _COUNTED.finditer(listing):
        node = each[1] or node
        if each[2]:
            found[node] = found.get(node, 0) + int(each[2])
    for each in _COUNTED_BY_IPTABLES.finditer(listing):
        found[each[2]] = found.get(each[2], 0) + int(each[1])
    return found


def _nft(lines: Sequence[str]) -> str:
    """Return a command that does all of these lines, or none."""
    return f"printf '%s\\n' {' '.join(map(quote, lines))} | root nft -f - || fail 'nft refused'"


def _script(place: Place, *parts: str) -> str:
    *libraries, body = parts
    return (
        f"dir={quote(place.directory)} mark_name={MARK} mark={quote(place.mark)}"
        f" table={quote(place.table)}\n{_LIBRARY}{''.join(libraries)}\n"
        f"whole() {{\n{body}\n}}\nwhole\n"
    )
