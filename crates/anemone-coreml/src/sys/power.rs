//! Energy of the machine's parts by `IOReport`, which needs no root. It is no public interface: it is looked up when it is asked for, and a
//! system without it tells no energy.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

type Ref = *const c_void;

const UTF8: u32 = 0x0800_0100;
const RTLD_NOW: c_int = 2;
const GROUP: &CStr = c"Energy Model";
/// Parts that are told, by what the names of their channels begin with.
const PARTS: [(&str, &str); 4] =
    [("ANE", "ane"), ("CPU Energy", "cpu"), ("GPU Energy", "gpu"), ("DRAM", "dram")];

// SAFETY: the signatures are those of Apple's header of Core Foundation.
#[link(name = "CoreFoundation", kind = "framework")]
unsafe extern "C" {
    fn CFRelease(object: Ref);
    fn CFStringCreateWithCString(allocator: Ref, text: *const c_char, encoding: u32) -> Ref;
    fn CFStringGetCString(text: Ref, buffer: *mut c_char, size: isize, encoding: u32) -> u8;
    fn CFDictionaryGetValue(dictionary: Ref, key: Ref) -> Ref;
    fn CFArrayGetCount(array: Ref) -> isize;
    fn CFArrayGetValueAtIndex(array: Ref, index: isize) -> Ref;
}

// SAFETY: the signatures are those of POSIX.
unsafe extern "C" {
    fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

// SAFETY: called with objects of the kinds that IOReportCopyChannelsInGroup takes.
type CopyChannels = unsafe extern "C" fn(Ref, Ref, u64, u64, u64) -> Ref;
// SAFETY: called with objects of the kinds that IOReportCreateSubscription takes.
type Subscribe = unsafe extern "C" fn(Ref, Ref, *mut Ref, u64, Ref) -> Ref;
// SAFETY: called with objects of the kinds that IOReportCreateSamples and IOReportCreateSamplesDelta takes.
type Samples = unsafe extern "C" fn(Ref, Ref, Ref) -> Ref;
// SAFETY: called with objects of the kinds that IOReportSimpleGetIntegerValue takes.
type Number = unsafe extern "C" fn(Ref, c_int) -> i64;
// SAFETY: called with objects of the kinds that the calls for a channel's texts take.
type Text = unsafe extern "C" fn(Ref) -> Ref;

/// An object of Core Foundation that this owns; never nil.
struct Owned(Ref);

impl Owned {
    /// What a call that creates gave.
    fn new(object: Ref) -> Option<Self> {
        (!object.is_null()).then_some(Self(object))
    }

    fn text(text: &CStr) -> Option<Self> {
        // SAFETY: the text ends with a zero; no allocator is the default one.
        Self::new(unsafe { CFStringCreateWithCString(ptr::null(), text.as_ptr(), UTF8) })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object was given to this one, which lets go of it once.
        unsafe { CFRelease(self.0) };
    }
}

/// The energy counters of this machine.
pub struct Energy {
    channels: Owned,
    subscription: Owned,
    samples: Samples,
    number: Number,
    name: Text,
    unit: Text,
}

// SAFETY: the objects are used by one thread at a time, for all calls take them by exclusive reference, and hang on no thread.
unsafe impl Send for Energy {}

impl std::fmt::Debug for Energy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Energy").finish_non_exhaustive()
    }
}

impl Energy {
    /// The counters; none where the system has none of them.
    pub fn open() -> Option<Self> {
        // SAFETY: the path ends with a zero; the library is never unloaded, so that its functions stay.
        let library = unsafe { dlopen(c"/usr/lib/libIOReport.dylib".as_ptr(), RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is open and the name ends with a zero.
            let symbol = unsafe { dlsym(library, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol)
        };
        let (copy, subscribe) =
            (symbol(c"IOReportCopyChannelsInGroup")?, symbol(c"IOReportCreateSubscription")?);
        let (samples, number) =
            (symbol(c"IOReportCreateSamples")?, symbol(c"IOReportSimpleGetIntegerValue")?);
        let (name, unit) =
            (symbol(c"IOReportChannelGetChannelName")?, symbol(c"IOReportChannelGetUnitLabel")?);
        // SAFETY: the functions of these names have these types, as all who call them declare.
        let (copy, subscribe, samples, number, name, unit) = unsafe {
            (
                std::mem::transmute::<*mut c_void, CopyChannels>(copy),
                std::mem::transmute::<*mut c_void, Subscribe>(subscribe),
                std::mem::transmute::<*mut c_void, Samples>(samples),
                std::mem::transmute::<*mut c_void, Number>(number),
                std::mem::transmute::<*mut c_void, Text>(name),
                std::mem::transmute::<*mut c_void, Text>(unit),
            )
        };
        let group = Owned::text(GROUP)?;
        // SAFETY: the group is a string; no subgroup is all of them.
        let wanted = Owned::new(unsafe { copy(group.0, ptr::null(), 0, 0, 0) })?;
        let mut subscribed: Ref = ptr::null();
        // SAFETY: the channels are those that were just copied; the place for those subscribed to is valid for the call.
        let subscription =
            Owned::new(unsafe { subscribe(ptr::null(), wanted.0, &raw mut subscribed, 0, ptr::null()) })?;
        Some(Self { channels: Owned::new(subscribed)?, subscription, samples, number, name, unit })
    }

    /// Joules that each part took since the system started, by name.
    pub fn joules(&mut self) -> Vec<(String, f64)> {
        let mut parts: Vec<(String, f64)> = Vec::new();
        // SAFETY: subscription and channels are those of `open`, alive as long as this.
        let sample = Owned::new(unsafe { (self.samples)(self.subscription.0, self.channels.0, ptr::null()) });
        let (Some(sample), Some(key)) = (sample, Owned::text(c"IOReportChannels")) else { return parts };
        // SAFETY: a sample is a dictionary, which keeps its values alive.
        let channels = unsafe { CFDictionaryGetValue(sample.0, key.0) };
        if channels.is_null() {
            return parts;
        }
        // SAFETY: what is under this key is an array.
        let count = unsafe { CFArrayGetCount(channels) };
        for index in 0..count {
            // SAFETY: the index is below the count; channel, name and unit live as long as the sample.
            let (name, unit, number) = unsafe {
                let channel = CFArrayGetValueAtIndex(channels, index);
                (text((self.name)(channel)), text((self.unit)(channel)), (self.number)(channel, 0))
            };
            let scale = match unit.trim() {
                "mJ" => 1e-3,
                "uJ" => 1e-6,
                "nJ" => 1e-9,
                _ => continue,
            };
            let Some((_, part)) = PARTS.iter().find(|(begins, _)| name.starts_with(begins)) else { continue };
            let joules = number.max(0) as f64 * scale;
            match parts.iter_mut().find(|(known, _)| known == part) {
                Some((_, sum)) => *sum += joules,
                None => parts.push(((*part).to_owned(), joules)),
            }
        }
        parts
    }
}

/// A string of Core Foundation; empty for nil.
fn text(string: Ref) -> String {
    let mut buffer = [0_u8; 64];
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the string is alive and the buffer as large as is said.
    let fits = unsafe { CFStringGetCString(string, buffer.as_mut_ptr().cast(), buffer.len() as isize, UTF8) };
    if fits == 0 {
        return String::new();
    }
    CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
