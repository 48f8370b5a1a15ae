//! Settings of dispatch and steering: read or refused in one sentence that names the key; settings that are read can be used.

use weir_core::dispatch::handlers;
use weir_core::dispatch::settings::Settings;
use weir_core::steer::key::{KEY_LEN_BYTES, Key};

use crate::draw::Draw;

/// Lines of KEY=VALUE, and a key of its own.
pub fn settings(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(4) {
        return key(&mut draw);
    }
    let cpus = 1 + draw.below(200);
    let text = String::from_utf8_lossy(draw.rest());
    let mut settings = Settings::new(handlers::protocols());
    for setting in text.lines() {
        let Some((key, value)) = setting.split_once('=') else { continue };
        if let Err(error) = settings.set(key, value) {
            let told = error.to_string();
            assert!(told.starts_with(&format!("{key}: ")), "{told}");
            // A user is told of the first fault, and no more is done.
            return;
        }
    }
    match settings.finish(cpus) {
        Ok(configuration) => {
            assert!(
                (1..=configuration.workers_max).contains(&configuration.workers)
                    && configuration.workers <= cpus
            );
            let registry = &configuration.registry;
            let rss = registry.rss();
            assert!((0..rss.buckets()).all(|bucket| rss.worker(bucket as u32) < configuration.workers));
            for id in registry.ids() {
                assert!((1..=configuration.maxqlimit).contains(&registry.get(id).qlimit));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Any forty bytes, as they are printed.
fn key(draw: &mut Draw) {
    let bytes: [u8; KEY_LEN_BYTES] = draw.array();
    let printed = bytes.map(|byte| format!("{byte:02x}")).join(":");
    let read = printed.parse::<Key>();
    assert_eq!(read, Key::new(&bytes));
    if let Ok(key) = read {
        assert_eq!((key.bytes(), key.to_string()), (&bytes, printed));
    }
    let text = String::from_utf8_lossy(draw.rest());
    if let Ok(key) = text.parse::<Key>() {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
}
