// Judges histories with porcupine, one after the other, and says how long each took.
//
// Usage: porcupine MODEL SECONDS FILE...
//
// A file has one operation a line, six fields with tabs between: process, f, input, output, call,
// return; the last two in nanoseconds. "-" stands for nothing, as a return for an unknown outcome.
// A cas has its expected value and its new one as input, with a comma between. Where the model is
// kv the input begins with the key and a comma; keys are judged apart.
//
// Answers one line a file: the verdict and the seconds of processor time of the check alone.
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
)

type input struct {
	f, key string
	a, b   int
	text   string
}

type output struct {
	unknown bool
	value   int
	text    string
}

const nothing = math.MinInt64

func number(field string) int {
	if field == "-" {
		return nothing
	}
	value, err := strconv.Atoi(field)
	if err != nil {
		panic(err)
	}
	return value
}

var models = map[string]porcupine.Model{
	"cas-register": {
		Init: func() interface{} { return nothing },
		Step: func(state, in, out interface{}) (bool, interface{}) {
			i, o, s := in.(input), out.(output), state.(int)
			switch i.f {
			case "read":
				return o.unknown || o.value == s, s
			case "write":
				return true, i.a
			}
			if o.unknown {
				if s == i.a {
					return true, i.b
				}
				return true, s
			}
			if s == i.a {
				return o.value == 1, i.b
			}
			return o.value == 0, s
		},
	},
	"mutex": {
		Init: func() interface{} { return false },
		Step: func(state, in, out interface{}) (bool, interface{}) {
			i, o, held := in.(input), out.(output), state.(bool)
			if i.f == "acquire" {
				return !held || o.unknown, true
			}
			return held || o.unknown, false
		},
	},
	// The state is the queued values, eight bytes each.
	"fifo-queue": {
		Init: func() interface{} { return "" },
		Step: func(state, in, out interface{}) (bool, interface{}) {
			i, o, s := in.(input), out.(output), state.(string)
			if i.f == "enqueue" {
				return true, s + packed(i.a)
			}
			if s == "" {
				return o.unknown || o.value == nothing, s
			}
			return o.unknown || packed(o.value) == s[:8], s[8:]
		},
	},
	// The state is the pushed values, eight bytes each.
	"stack": {
		Init: func() interface{} { return "" },
		Step: func(state, in, out interface{}) (bool, interface{}) {
			i, o, s := in.(input), out.(output), state.(string)
			if i.f == "push" {
				return true, s + packed(i.a)
			}
			if s == "" {
				return o.unknown || o.value == nothing, s
			}
			top := len(s) - 8
			return o.unknown || packed(o.value) == s[top:], s[:top]
		},
	},
	"kv": {
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			keys := map[string][]porcupine.Operation{}
			for _, o := range history {
				key := o.Input.(input).key
				keys[key] = append(keys[key], o)
			}
			var parts [][]porcupine.Operation
			for _, part := range keys {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() interface{} { return "" },
		Step: func(state, in, out interface{}) (bool, interface{}) {
			i, o, s := in.(input), out.(output), state.(string)
			switch i.f {
			case "get":
				return o.unknown || o.text == s, s
			case "put":
				return true, i.text
			}
			return true, s + i.text
		},
	},
}

func packed(value int) string {
	var bytes [8]byte
	for n := range bytes {
		bytes[n] = byte(value >> (8 * n))
	}
	return string(bytes[:])
}

func operation(model string, line string) porcupine.Operation {
	fields := strings.Split(line, "\t")
	in, out := input{f: fields[1]}, output{}
	given := strings.SplitN(fields[2], ",", 2)
	switch {
	case model == "kv":
		in.key, in.text = given[0], given[1]
		out.text = fields[3]
	case len(given) == 2:
		in.a, in.b = number(given[0]), number(given[1])
	default:
		in.a = number(given[0])
	}
	end := int64(math.MaxInt64)
	if fields[5] == "-" {
		out.unknown = true
	} else {
		end = int64(number(fields[5]))
		if model != "kv" {
			out.value = number(fields[3])
		}
	}
	return porcupine.Operation{
		ClientId: number(fields[0]), Input: in, Output: out,
		Call: int64(number(fields[4])), Return: end,
	}
}

func processorSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	model := models[os.Args[1]]
	seconds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	for _, name := range os.Args[3:] {
		file, err := os.Open(name)
		if err != nil {
			panic(err)
		}
		var history []porcupine.Operation
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			history = append(history, operation(os.Args[1], lines.Text()))
		}
		file.Close()
		begin, wall := processorSeconds(), time.Now()
		verdict := porcupine.CheckOperationsTimeout(model, history, time.Duration(seconds)*time.Second)
		fmt.Println(verdict, processorSeconds()-begin, time.Since(wall).Seconds())
	}
}
