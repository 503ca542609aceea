%% What a node of the target rabbitmq does beside RabbitMQ: it finds its peers without epmd, and
%% says when it is in a cluster of all of them.
%%
%% Erlang asks this module where a node is (-epmd_module). The answer is an address of the run, which
%% may be that of a proxy: so links between nodes can be cut. They are the argument
%% -peers n0=ADDRESS:PORT,n1=ADDRESS:PORT,...; this node's own port is that of -erl_epmd_port.
%%
%% Source: OTP 25's erl_epmd.erl, and its guide "Alternative Node Discovery".
-module(shaketable_node).

-export([start_link/0, register_node/2, register_node/3, listen_port_please/2, names/1,
         address_please/3, port_please/2, port_please/3]).
-export([say_when_joined/0, sync_when_joined/0]).

%% The version of the protocol between nodes that OTP 23 and later speak.
-define(DISTRIBUTION_VERSION, 6).
-define(LOOK_AGAIN_AFTER_MS, 100).

start_link() -> ignore.

register_node(Name, Port) -> register_node(Name, Port, inet).

%% A node's number tells its incarnations apart, as epmd's do.
register_node(_Name, _Port, _Family) -> {ok, 4 + rand:uniform(1 bsl 31 - 4)}.

listen_port_please(Name, Host) -> erl_epmd:listen_port_please(Name, Host).

names(_Host) -> {ok, [{Name, Port} || {Name, {_, Port}} <- peers()]}.

address_please(Name, _Host, _Family) ->
    case proplists:get_value(text(Name), peers()) of
        undefined -> {error, nxdomain};
        {Address, Port} -> {ok, Address, Port, ?DISTRIBUTION_VERSION}
    end.

port_please(Name, Host) -> port_please(Name, Host, infinity).

port_please(Name, _Host, _Timeout) ->
    case proplists:get_value(text(Name), peers()) of
        undefined -> noport;
        {_, Port} -> {port, Port, ?DISTRIBUTION_VERSION}
    end.

%% A node that is up may have made a cluster of its own: no queue may be declared before all are in
%% one. Nodes that are down are members, too.
say_when_joined() -> spawn(fun() -> wait(), say() end).

%% The same of a node that is new: as if its cluster had been formed long ago. RabbitMQ syncs little of
%% what a node writes then, and a power loss seconds later would test that alone.
sync_when_joined() -> spawn(fun() -> wait(), sync(), say() end).

say() -> io:format("in a cluster of ~b~n", [length(peers())]).

wait() ->
    case is_complete() of
        true -> ok;
        false -> timer:sleep(?LOOK_AGAIN_AFTER_MS), wait()
    end.

%% After a partition RabbitMQ may stop and start within the node: then it cannot be asked.
is_complete() ->
    try length(rabbit_nodes:all()) =:= length(peers()) catch _:_ -> false end.

%% Files may come and go meanwhile: whatever the program says of them, the others are synced.
sync() ->
    Arguments = [os:getenv("RABBITMQ_MNESIA_BASE"), "-exec", "sync", "{}", "+"],
    Find = open_port({spawn_executable, os:find_executable("find")},
                     [{args, Arguments}, exit_status, stderr_to_stdout]),
    ended(Find).

ended(Port) ->
    receive
        {Port, {exit_status, _}} -> ok;
        {Port, {data, _}} -> ended(Port)
    end.

peers() ->
    {ok, [[Given]]} = init:get_argument(peers),
    [peer(string:split(Each, "=")) || Each <- string:lexemes(Given, ",")].

peer([Name, At]) ->
    [Host, Port] = string:split(At, ":", trailing),
    {ok, Address} = inet:parse_address(string:trim(Host, both, "[]")),
    {Name, {Address, list_to_integer(Port)}}.

text(Name) when is_atom(Name) -> atom_to_list(Name);
text(Name) -> Name.
