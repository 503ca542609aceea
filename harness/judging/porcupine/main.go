// Judges objects with porcupine, one after the other, and says how long each took.
//
// Usage: porcupine MODEL SECONDS INITIAL FILE FROM
//
// A line of FILE is an object: a JSON array of operations with process, f, input, expected, output,
// call and return (nanoseconds; none if the outcome is unknown). Objects before number FROM are
// skipped. INITIAL is the first state as JSON, as the models below take it.
//
// Answers one line an object: its number, the verdict, and the seconds that the check took.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const null = "null"

type recorded struct {
	Process                 int
	F                       string
	Input, Expected, Output json.RawMessage
	Call                    int64
	Return                  *int64
}

// Values are their JSON texts: equal values have equal texts, since one program wrote all of them.
type input struct{ f, value, expected string }

type output struct {
	unknown bool
	value   string
}

type step = func(state string, in input, out output) (bool, string)

func text(raw json.RawMessage) string {
	if len(raw) == 0 {
		return null
	}
	return string(raw)
}

func list(value string) []string {
	var raw []json.RawMessage
	if value != null {
		if err := json.Unmarshal([]byte(value), &raw); err != nil {
			panic(err)
		}
	}
	texts := make([]string, len(raw))
	for n, each := range raw {
		texts[n] = string(each)
	}
	return texts
}

func array(texts []string) string { return "[" + strings.Join(texts, ",") + "]" }

// A set, sorted, each element once.
func sorted(texts []string) string {
	sort.Strings(texts)
	kept := texts[:0]
	for n, each := range texts {
		if n == 0 || each != texts[n-1] {
			kept = append(kept, each)
		}
	}
	return array(kept)
}

func register(s string, in input, out output) (bool, string) {
	switch in.f {
	case "read":
		return out.unknown || out.value == s, s
	case "write":
		return true, in.value
	}
	same := s == in.expected
	if out.unknown || same == (out.value != "0") {
		if same {
			return true, in.value
		}
		return true, s
	}
	return false, s
}

func mutex(s string, in input, out output) (bool, string) {
	held := s == `"held"`
	if in.f == "release" {
		return held || out.unknown, `"free"`
	}
	if out.value == "0" {
		return held, s
	}
	return !held || out.unknown, `"held"`
}

func counter(s string, in input, out output) (bool, string) {
	if in.f == "read" {
		return out.unknown || out.value == s, s
	}
	sum, ok := new(big.Int).SetString(s, 10)
	more, whole := new(big.Int).SetString(in.value, 10)
	if !ok || !whole {
		panic("a counter takes whole numbers")
	}
	return true, sum.Add(sum, more).String()
}

func set(s string, in input, out output) (bool, string) {
	if in.f == "read" {
		return out.unknown || sorted(list(out.value)) == s, s
	}
	held := list(s)
	if in.f == "add" {
		return true, sorted(append(held, in.value))
	}
	return true, array(without(held, in.value))
}

func without(held []string, value string) []string {
	for n, each := range held {
		if each == value {
			return append(append([]string{}, held[:n]...), held[n+1:]...)
		}
	}
	return held
}

// A list from which one end is taken.
func ended(put string, takes string, last bool) step {
	return func(s string, in input, out output) (bool, string) {
		held := list(s)
		if in.f == put {
			return true, array(append(held, in.value))
		}
		if len(held) == 0 {
			return out.unknown || out.value == null, s
		}
		end, rest := held[0], held[1:]
		if last {
			end, rest = held[len(held)-1], held[:len(held)-1]
		}
		if in.f != takes {
			return out.unknown || out.value == end, s
		}
		return out.unknown || out.value == end, array(rest)
	}
}

func kv(s string, in input, out output) (bool, string) {
	var held, given string
	value := in.value
	if in.f == "get" {
		value = out.value
	}
	if err := json.Unmarshal([]byte(s), &held); err != nil {
		panic(err)
	}
	if value != null && json.Unmarshal([]byte(value), &given) != nil {
		given = value
	}
	if in.f == "get" {
		return out.unknown || given == held, s
	}
	if in.f == "append" {
		given = held + given
	}
	packed, _ := json.Marshal(given)
	return true, string(packed)
}

// The state is a JSON array: name, value, name, value; by name, without those that hold nothing.
func registers(s string, in input, out output) (bool, string) {
	pairs := list(s)
	held := map[string]string{}
	for n := 0; n < len(pairs); n += 2 {
		held[pairs[n]] = pairs[n+1]
	}
	done := out.value
	if out.unknown {
		done = in.value
	}
	for _, each := range list(done) {
		micro := list(each)
		f, name, value := micro[0], micro[1], micro[2]
		if f == `"w"` || f == `"write"` {
			held[name] = value
			continue
		}
		is, found := held[name]
		if !found {
			is = null
		}
		if !out.unknown && is != value {
			return false, s
		}
	}
	names := make([]string, 0, len(held))
	for name, value := range held {
		if value != null {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	packed := make([]string, 0, 2*len(names))
	for _, name := range names {
		packed = append(packed, name, held[name])
	}
	return true, array(packed)
}

// A dequeue of unknown outcome may have taken any value, or none.
func unordered(state, in, out interface{}) []interface{} {
	s, i, o := state.(string), in.(input), out.(output)
	held := list(s)
	if i.f == "enqueue" {
		held = append(held, i.value)
		sort.Strings(held)
		return []interface{}{array(held)}
	}
	if !o.unknown {
		if o.value == null {
			if len(held) == 0 {
				return []interface{}{s}
			}
			return nil
		}
		rest := without(held, o.value)
		if len(rest) == len(held) {
			return nil
		}
		return []interface{}{array(rest)}
	}
	states := []interface{}{s}
	for n, each := range held {
		if n == 0 || each != held[n-1] {
			states = append(states, array(without(held, each)))
		}
	}
	return states
}

var steps = map[string]step{
	"register": register, "cas-register": register, "mutex": mutex, "counter": counter, "set": set,
	"fifo-queue": ended("enqueue", "dequeue", false), "stack": ended("push", "pop", true),
	"kv": kv, "multi-register": registers,
}

func model(name string, initial string) porcupine.Model {
	if name == "unordered-queue" {
		m := porcupine.NondeterministicModel{
			Init: func() []interface{} { return []interface{}{initial} }, Step: unordered,
		}
		return m.ToModel()
	}
	do := steps[name]
	return porcupine.Model{
		Init: func() interface{} { return initial },
		Step: func(state, in, out interface{}) (bool, interface{}) {
			return do(state.(string), in.(input), out.(output))
		},
	}
}

func operations(line []byte) []porcupine.Operation {
	var rows []recorded
	if err := json.Unmarshal(line, &rows); err != nil {
		panic(err)
	}
	history := make([]porcupine.Operation, len(rows))
	for n, row := range rows {
		end := int64(math.MaxInt64)
		if row.Return != nil {
			end = *row.Return
		}
		history[n] = porcupine.Operation{
			ClientId: row.Process,
			Input:    input{row.F, text(row.Input), text(row.Expected)},
			Output:   output{row.Return == nil, text(row.Output)},
			Call:     row.Call, Return: end,
		}
	}
	return history
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		panic(err)
	}
	from, err := strconv.Atoi(os.Args[5])
	if err != nil {
		panic(err)
	}
	file, err := os.Open(os.Args[4])
	if err != nil {
		panic(err)
	}
	lines := bufio.NewReader(file)
	judge := model(os.Args[1], os.Args[3])
	for n := 0; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(err)
		}
		if n < from {
			continue
		}
		history := operations(line)
		begin := time.Now()
		limit := time.Duration(seconds * float64(time.Second))
		verdict := porcupine.CheckOperationsTimeout(judge, history, limit)
		fmt.Println(n, verdict, time.Since(begin).Seconds())
	}
}
