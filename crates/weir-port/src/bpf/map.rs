//! BPF maps: creation, update, and the memory of an array that program and process share.
//!
//! Source: `include/uapi/linux/bpf.h`, `union bpf_attr`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::object::{self, ObjectKind};
use crate::mapping::Mapping;
use crate::sys;

const BPF_MAP_CREATE: u32 = 0;
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_MAP_DELETE_ELEM: u32 = 3;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// The kinds of map that Weir uses (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum MapType {
    Array = 2,
    LruHash = 9,
    Xskmap = 17,
    Ringbuf = 27,
}

#[repr(C)]
#[derive(Default)]
struct CreateAttributes {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

/// The attributes of a change. For deletion, the kernel wants the fields behind the key to be 0.
#[repr(C)]
#[derive(Default)]
struct UpdateAttributes {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A map, freed with its last descriptor.
pub struct Map {
    fd: OwnedFd,
    key_size: u32,
    value_size: u32,
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Map {
    fn create(
        map_type: MapType,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
    ) -> io::Result<Map> {
        let mut attributes = CreateAttributes {
            map_type: map_type as u32,
            key_size,
            value_size,
            max_entries,
            map_flags,
            ..Default::default()
        };
        attributes.map_name[..4].copy_from_slice(b"weir");
        let fd = sys::with_memory_to_lock(|| {
            // SAFETY: `attributes` holds no address.
            unsafe { sys::bpf(BPF_MAP_CREATE, &mut attributes) }.and_then(sys::check_fd)
        })?;
        Ok(Map { fd, key_size, value_size })
    }

    /// An array of one value that programs use and processes map into their memory.
    pub fn shared(value_bytes: u32) -> io::Result<Map> {
        Map::create(MapType::Array, 4, value_bytes, 1, BPF_F_MMAPABLE)
    }

    /// The map with number `id` in the kernel.
    pub fn by_id(id: u32) -> io::Result<Map> {
        // The sizes of its keys and values are not asked for: this map is only mapped.
        Ok(Map { fd: object::open(ObjectKind::Map, id)?, key_size: 0, value_size: 0 })
    }

    /// The map from a device's receive queue to the AF_XDP socket that takes its packets.
    pub fn xskmap(queues: u32) -> io::Result<Map> {
        Map::create(MapType::Xskmap, 4, 4, queues, 0)
    }

    /// A map of 32-bit keys and values that forgets what was used longest ago.
    pub fn lru_hash(entries: u32) -> io::Result<Map> {
        Map::create(MapType::LruHash, 4, 4, entries, 0)
    }

    /// Sets the 32-bit value of a 32-bit key.
    pub fn update(&self, key: u32, value: u32) -> io::Result<()> {
        assert_eq!((self.key_size, self.value_size), (4, 4), "a map of 32-bit keys and values");
        let mut attributes = UpdateAttributes {
            map_fd: self.fd.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key).addr() as u64,
            value: std::ptr::from_ref(&value).addr() as u64,
            ..Default::default()
        };
        // SAFETY: the kernel reads a key and a value of the map's sizes, which are those of the two live words.
        unsafe { sys::bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
    }

    /// Removes a 32-bit key; an absent key is no error.
    pub fn delete(&self, key: u32) -> io::Result<()> {
        assert_eq!(self.key_size, 4, "a map of 32-bit keys");
        let mut attributes = UpdateAttributes {
            map_fd: self.fd.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key).addr() as u64,
            ..Default::default()
        };
        // SAFETY: the kernel reads a key of the map's size, which is that of the live word.
        match unsafe { sys::bpf(BPF_MAP_DELETE_ELEM, &mut attributes) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }
}

/// An array map of one value whose words are shared with the programs that use it.
///
/// All access from this side is by atomics, so the programs may write at any time.
pub struct SharedWords {
    map: Map,
    mapping: Mapping,
    length_words: usize,
}

impl SharedWords {
    /// An array of `length_words` words, all 0.
    pub fn new(length_words: usize) -> io::Result<SharedWords> {
        let map = Map::shared((length_words * 4) as u32)?;
        let mapping = Mapping::new(map.as_fd(), 0, length_words * 4, true)?;
        Ok(SharedWords { map, mapping, length_words })
    }

    /// The words. Those that are two halves of a [`SharedWords::double`] are touched by way of that alone.
    pub fn words(&self) -> &[AtomicU32] {
        self.mapping.words(0, self.length_words)
    }

    /// The 64-bit word whose first half is this word, of an even number.
    pub fn double(&self, word: usize) -> &AtomicU64 {
        // SAFETY: `array` checked bounds and alignment; the mapping lives as long as `self`; both sides access these bytes as an
        // aligned 64-bit word, whole.
        unsafe { self.mapping.array::<AtomicU64>(4 * word, 1).as_ref() }
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// A ring of records from programs to this process, used only for being readable: the content of a record does not matter.
///
/// Layout: a page with the consumer's position, a page with the producer's, then the data (kernel
/// `kernel/bpf/ringbuf.c`). Positions count bytes and never wrap. See `RingPages`.
pub struct WakeRing {
    map: Map,
    consumer: Mapping,
    producer: Mapping,
}

impl WakeRing {
    /// An empty ring of one page, room for far more records than are ever unread: there is one kick per park.
    pub fn new() -> io::Result<WakeRing> {
        let pages = RingPages::of(sys::page_bytes());
        let map = Map::create(MapType::Ringbuf, 0, 0, pages.data_bytes, 0)?;
        let consumer = Mapping::new(map.as_fd(), 0, pages.position_bytes, true)?;
        let producer = Mapping::new(map.as_fd(), pages.producer_offset, pages.position_bytes, false)?;
        Ok(WakeRing { map, consumer, producer })
    }

    /// Takes every record, so that the ring is readable again only after the next one.
    pub fn drain(&self) {
        // A position is a 64-bit word that only ever grows; this one is written by us alone.
        // SAFETY: `array` checked bounds and alignment, and both pages live as long as `self`; the kernel accesses
        // them as aligned `unsigned long`s with acquire and release.
        let (consumer, producer) = unsafe {
            (self.consumer.array::<AtomicU64>(0, 1).as_ref(), self.producer.array::<AtomicU64>(0, 1).as_ref())
        };
        consumer.store(producer.load(Ordering::Acquire), Ordering::Release);
    }
}

impl AsFd for WakeRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// The sizes of a ring's parts, which the kernel wants in whole pages of the machine: 4, 16 or 64 KiB.
///
/// Source: kernel `kernel/bpf/ringbuf.c:ringbuf_map_alloc` for the data, `ringbuf_map_mmap_kern` for the positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingPages {
    /// The bytes of the data: whole pages, and a power of two.
    data_bytes: u32,
    /// The bytes of the mapping of one position: one page exactly, or it may not be written.
    position_bytes: usize,
    /// The offset from which the producer's position is mapped; the consumer's comes first.
    producer_offset: i64,
}

impl RingPages {
    /// The sizes on a machine with pages of `page_bytes` bytes.
    fn of(page_bytes: usize) -> RingPages {
        let data_bytes = u32::try_from(page_bytes).expect("a page of less than 4 GiB");
        RingPages { data_bytes, position_bytes: page_bytes, producer_offset: i64::from(data_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_made_of_the_machines_pages() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            let pages = RingPages::of(page_bytes);
            assert!(
                pages.data_bytes.is_power_of_two() && (pages.data_bytes as usize).is_multiple_of(page_bytes)
            );
            assert_eq!(
                pages.position_bytes, page_bytes,
                "the kernel maps a position's page alone to be written"
            );
            assert_eq!(pages.producer_offset, page_bytes as i64, "the second page");
        }
    }
}
