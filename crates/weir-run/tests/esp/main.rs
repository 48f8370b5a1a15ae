//! ESP stages of a file, on one worker in virtual time.

mod bench;
mod chain;
mod fragments;
mod in_udp;
mod own_fragments;
