//! Every fuzz target, a test each: a fixed number of inputs on any toolchain ([`weir_fuzz::engine`] says how many, and which),
//! or as many as coverage finds under `cargo bolero test`.

macro_rules! targets {
    ($($name:ident: $target:path,)*) => {
        $(
            #[test]
            fn $name() {
                #[cfg(fuzzing)]
                bolero::check!().for_each(|bytes: &[u8]| $target(bytes));
                #[cfg(not(fuzzing))]
                weir_fuzz::engine::run(stringify!($name), $target);
            }
        )*
    };
}

use weir_fuzz::targets;

targets! {
    bridging: targets::bridge::bridging,
    class_trees: targets::classes::class_trees,
    classes: targets::classes::classes,
    classifying: targets::headers::classifying,
    counters: targets::control::counters,
    ecn: targets::ecn::marking,
    endpoints: targets::names::endpoints,
    esp_fragments: targets::esp_fragments::esp_fragments,
    esp_nonsense: targets::esp::esp_nonsense,
    esp_sealed: targets::esp::esp_sealed,
    fragments: targets::fragments::fragments,
    handoff: targets::handoff,
    icmp: targets::router::icmp,
    follow_bytes: targets::follow::follow_bytes,
    follows: targets::follow::follows,
    import_text: targets::import::import_text,
    imports: targets::import::imports,
    link_events: targets::netlink::link_events,
    memcache_bytes: targets::memcache::memcache_bytes,
    memcache_requests: targets::memcache::memcache_requests,
    names: targets::names::names,
    netlink_replies: targets::netlink::netlink_replies,
    plans: targets::plans::plans,
    proc_tables: targets::proc::proc_tables,
    replies: targets::control::replies,
    requests: targets::control::requests,
    resolving: targets::router::resolving,
    routing: targets::router::routing,
    set_limits: targets::control::set_limits,
    settings: targets::settings::settings,
    steering: targets::headers::steering,
    tcp_segments: targets::tcp::tcp_segments,
    topology_files: targets::topology::topology_files,
    topologies: targets::topology::topologies,
    undo_records: targets::control::undo_records,
    units: targets::units::units,
}
