#!/usr/bin/env bash
# Checks the walk of ARCHITECTURE.md (its block `walk`) against the code: that every function is in the file named, and is called by the one
# that it stands below; and that a packet's way takes few files and few changes of file.
#
# A line is FILE FUNCTION TEXT, in the order a packet meets them; what is further in is called by the last line that is less far in.
# `kernel` before the file: the kernel runs it, and nobody calls it. A change is each time that a reader turns to another file, back to the
# caller that goes on included.
set -euo pipefail
cd "$(dirname "$0")/.."

files_max=15
changes_max=30

awk -v files_max="$files_max" -v changes_max="$changes_max" '
    function fault(text) { print "walk: " text > "/dev/stderr"; faults++ }
    # The text of all functions of this name in a file, up to the brace that ends them; rustfmt puts it where `fn` stands.
    function body(file, name,    line, text, indent, inside) {
        while ((getline line < file) > 0) {
            if (!inside && line ~ "^ *(pub(\\([a-z]+\\))? )?(const )?(unsafe )?fn " name "[(<]") {
                match(line, /^ */); indent = RLENGTH; inside = 1
            }
            if (inside) {
                text = text line "\n"
                match(line, /^ */)
                if (RLENGTH == indent && line ~ /^ *}$/) inside = 0
            }
        }
        close(file)
        return text
    }
    function visit(file) {
        if (file == now) return
        if (!(file in seen)) { seen[file] = 1; files++ }
        if (now != "") changes++
        now = file
    }
    /^```walk$/ { is_walk = 1; next }
    /^```$/ { is_walk = 0 }
    is_walk {
        match($0, /^ */); depth = RLENGTH
        is_kernel = $1 == "kernel"
        named = is_kernel ? $2 : $1; name = is_kernel ? $3 : $2
        file = named; sub("/", "/src/", file); file = "crates/" file
        while (steps > 0 && depths[steps] >= depth) steps--
        caller = steps
        text = body(file, name)
        if (text == "") fault(named " has no function " name)
        if (caller > 0) {
            visit(at[caller])
            if (!is_kernel && bodies[caller] !~ "[^a-z_]" name "\\(")
                fault(names[caller] " of " at[caller] " calls no " name)
        }
        visit(file)
        steps++; depths[steps] = depth; at[steps] = file; names[steps] = name; bodies[steps] = text
        count++
    }
    END {
        if (count == 0) fault("ARCHITECTURE.md has no walk")
        if (files > files_max) fault(files " files, " files_max " at most")
        if (changes > changes_max) fault(changes " changes of file, " changes_max " at most")
        print "walk: " count " functions in " files + 0 " files, " changes + 0 " changes of file"
        exit faults > 0
    }' ARCHITECTURE.md
