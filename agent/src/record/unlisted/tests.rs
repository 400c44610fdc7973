use super::*;
use crate::record::modules::Events;
use alloc::string::String;
use alloc::vec;
use core::cell::RefCell;
use stk_schema::Ticks;
use stk_schema::event::Event;

const MS: u64 = 10;
const IMAGE: u64 = 0x1800_0000;
const SIZE: u64 = 0x5000;

/// A process with mapped images.
#[derive(Default)]
struct Process {
    /// Load address and time stamp; each has [`SIZE`] bytes.
    images: RefCell<Vec<(u64, u32)>>,
    listed: RefCell<Option<Vec<u64>>>,
}

impl Process {
    fn with(base: u64) -> Process {
        let process = Process::default();
        process.images.borrow_mut().push((base, 1));
        *process.listed.borrow_mut() = Some(vec![]);
        process
    }
}

impl Mappings for Process {
    fn image_at(&self, address: u64) -> Option<ModuleSighting> {
        let images = self.images.borrow();
        let (base, _) = images.iter().find(|(base, _)| (*base..base + SIZE).contains(&address))?;
        Some(ModuleSighting { base: *base, size: SIZE, path: vec![] })
    }

    fn listed(&self) -> Option<Vec<u64>> {
        self.listed.borrow().clone()
    }

    fn identity(&self, base: u64) -> Option<PeIdentity> {
        let images = self.images.borrow();
        let (_, stamp) = images.iter().find(|image| image.0 == base)?;
        Some(PeIdentity { time_date_stamp: *stamp, size_of_image: SIZE as u32, check_sum: 0 })
    }
}

struct NoEvents;

impl Events for NoEvents {
    fn event(&mut self, _: &Event<'_>) {}
}

fn known(base: u64, flags: ModuleFlags) -> Modules {
    let mut modules = Modules::default();
    modules.loaded(
        Ticks(0),
        ModuleSighting { base, size: SIZE, path: b"known.dll".to_vec() },
        flags,
        (None, None),
        &mut NoEvents,
    );
    modules
}

fn sighting(inside: u64, time: u64, executed: bool) -> CodeSample {
    CodeSample { inside, time: Ticks(time), executed }
}

/// The images found at `now` from these sightings: load addresses and times.
fn find(
    unlisted: &mut UnlistedImages,
    now: u64,
    modules: &Modules,
    process: &Process,
    sightings: &[CodeSample],
) -> Vec<(u64, u64)> {
    let mut sightings = sightings.iter().copied();
    let found = unlisted.find(Ticks(now), MS, modules, process, || sightings.next());
    found.iter().map(|found| (found.seen.base, found.time.0)).collect()
}

#[test]
fn executed_code_in_an_unlisted_image_is_found_once_with_its_first_time() {
    let (mut unlisted, process) = (UnlistedImages::default(), Process::with(IMAGE));
    let sightings =
        [sighting(IMAGE + 0x1100, 70, true), sighting(IMAGE + 0x1200, 60, true), sighting(5, 50, true)];
    assert_eq!(find(&mut unlisted, 80, &Modules::default(), &process, &sightings), [(IMAGE, 60)]);
    let recorded = known(IMAGE, ModuleFlags::UNLISTED);
    assert_eq!(find(&mut unlisted, 90, &recorded, &process, &sightings), []);
}

#[test]
fn a_stack_word_waits_and_an_instruction_pointer_ends_the_wait() {
    let (mut unlisted, process, none) = (UnlistedImages::default(), Process::with(IMAGE), Modules::default());
    let word = [sighting(IMAGE + 0x1100, 7, false)];
    let ripe = 7 + CONFIRM_MS * MS;
    assert_eq!(find(&mut unlisted, 8, &none, &process, &word), []);
    assert_eq!(find(&mut unlisted, ripe - 1, &none, &process, &word), []);
    assert_eq!(find(&mut unlisted, ripe, &none, &process, &[]), [(IMAGE, 7)]);

    let mut unlisted = UnlistedImages::default();
    assert_eq!(find(&mut unlisted, 8, &none, &process, &word), []);
    assert_eq!(
        find(&mut unlisted, 20, &none, &process, &[sighting(IMAGE + 1, 15, true)]),
        [(IMAGE, 7)],
        "the word had shown it before"
    );
}

#[test]
fn an_image_that_the_loader_maps_or_unmaps_is_not_unlisted() {
    // The image is in the list, but its notification has not come yet.
    let (mut unlisted, process, none) = (UnlistedImages::default(), Process::with(IMAGE), Modules::default());
    *process.listed.borrow_mut() = Some(vec![IMAGE]);
    let executed = [sighting(IMAGE + 0x1100, 7, true)];
    assert_eq!(find(&mut unlisted, 8, &none, &process, &executed), []);
    // The list was changed while it was read, so nothing is known.
    *process.listed.borrow_mut() = None;
    assert_eq!(find(&mut unlisted, 8, &none, &process, &executed), []);
    // A stack word showed it before the list had it. It is listed or known before the wait ends.
    *process.listed.borrow_mut() = Some(vec![]);
    assert_eq!(find(&mut unlisted, 8, &none, &process, &[sighting(IMAGE + 0x1100, 7, false)]), []);
    let later = 7 + CONFIRM_MS * MS;
    assert_eq!(find(&mut unlisted, later, &known(IMAGE, ModuleFlags::NOTIFIED), &process, &[]), []);
    // It was unloaded after the sample was taken.
    let seen = ModuleSighting { base: IMAGE, size: SIZE, path: vec![] };
    unlisted.unloaded(&seen, Ticks(7));
    assert_eq!(find(&mut unlisted, 9, &none, &process, &executed), []);
    let afterwards = [sighting(IMAGE + 0x1100, 8, true)];
    assert_eq!(find(&mut unlisted, 9, &none, &process, &afterwards), [(IMAGE, 8)]);
    for base in 1..=UNLOADS as u64 * 3 {
        unlisted.unloaded(&ModuleSighting { base: base << 32, ..seen.clone() }, Ticks(9));
    }
    assert_eq!(unlisted.unloads.len(), UNLOADS);
}

#[test]
fn a_listed_image_without_a_notification_is_found_later() {
    let (mut unlisted, process, none) = (UnlistedImages::default(), Process::with(IMAGE), Modules::default());
    *process.listed.borrow_mut() = Some(vec![IMAGE]);
    let flags = |unlisted: &mut UnlistedImages, now, sightings: &[CodeSample]| -> Vec<(u64, ModuleFlags)> {
        let mut sightings = sightings.iter().copied();
        let found = unlisted.find(Ticks(now), MS, &none, &process, || sightings.next());
        found.iter().map(|found| (found.time.0, found.flags)).collect()
    };
    for executed in [true, false] {
        assert_eq!(flags(&mut unlisted, 8, &[sighting(IMAGE + 0x1100, 7, executed)]), []);
        let ripe = 7 + CONFIRM_MS * MS;
        assert_eq!(flags(&mut unlisted, ripe - 1, &[sighting(IMAGE + 0x1200, 20, true)]), []);
        assert_eq!(flags(&mut unlisted, ripe, &[]), [(7, ModuleFlags::empty())], "{executed}");
        assert_eq!(flags(&mut unlisted, ripe + 1, &[]), [], "once");
    }
    // Its end is looked for, until a notification says that the loader reports it.
    let mut modules = known(IMAGE, ModuleFlags::empty());
    process.images.borrow_mut().clear();
    assert_eq!(unlisted.gone(Ticks(1), MS, &modules, &process), [IMAGE]);
    let seen = ModuleSighting { base: IMAGE, size: SIZE, path: b"known.dll".to_vec() };
    modules.loaded(Ticks(2), seen, ModuleFlags::NOTIFIED, (None, None), &mut NoEvents);
    assert_eq!(unlisted.gone(Ticks(1 + LOOK_MS * MS), MS, &modules, &process), [] as [u64; 0]);
}

#[test]
fn addresses_past_the_loaders_size_still_belong_to_the_module() {
    let (mut unlisted, process) = (UnlistedImages::default(), Process::with(IMAGE));
    let mut modules = Modules::default();
    let seen = ModuleSighting { base: IMAGE, size: 0x1000, path: b"short.dll".to_vec() };
    modules.loaded(Ticks(0), seen, ModuleFlags::NOTIFIED, (None, None), &mut NoEvents);
    let sightings = [sighting(IMAGE + 0x4000, 7, true), sighting(IMAGE + 0x4100, 7, false)];
    assert_eq!(find(&mut unlisted, 8, &modules, &process, &sightings), []);
    assert_eq!(find(&mut unlisted, 7 + CONFIRM_MS * MS, &modules, &process, &[]), []);
}

#[test]
fn an_image_unmapped_before_it_is_confirmed_is_not_found() {
    let (mut unlisted, process, none) = (UnlistedImages::default(), Process::with(IMAGE), Modules::default());
    assert_eq!(find(&mut unlisted, 8, &none, &process, &[sighting(IMAGE + 1, 7, false)]), []);
    process.images.borrow_mut().clear();
    let later = 7 + CONFIRM_MS * MS;
    assert_eq!(find(&mut unlisted, later, &none, &process, &[sighting(IMAGE + 1, 9, true)]), []);
}

#[test]
fn recorded_and_waiting_images_are_limited() {
    let (mut unlisted, none) = (UnlistedImages::default(), Modules::default());
    let process = Process::with(IMAGE);
    let bases: Vec<u64> = (0..2000).map(|n| IMAGE + n * 0x1_0000).collect();
    *process.images.borrow_mut() = bases.iter().map(|&base| (base, 1)).collect();
    let all =
        |executed| -> Vec<CodeSample> { bases.iter().map(|&base| sighting(base + 1, 7, executed)).collect() };
    assert_eq!(find(&mut unlisted, 8, &none, &process, &all(true)).len(), MOST);
    assert_eq!(unlisted.left_out(), 2000 - MOST as u64);
    assert_eq!(find(&mut unlisted, 8, &none, &process, &all(false)), []);
    assert_eq!(unlisted.waiting.len(), MOST_WAITING);
}

#[test]
fn an_unlisted_image_is_gone_when_it_is_unmapped_or_replaced() {
    let process = Process::with(IMAGE);
    let mut modules = known(IMAGE, ModuleFlags::UNLISTED);
    modules.loaded(
        Ticks(0),
        ModuleSighting { base: 0x7000_0000, size: SIZE, path: vec![] },
        ModuleFlags::NOTIFIED,
        (None, None),
        &mut NoEvents,
    );
    let mut unlisted = UnlistedImages::default();
    assert_eq!(unlisted.gone(Ticks(1), MS, &modules, &process), [] as [u64; 0]);
    process.images.borrow_mut().clear();
    assert_eq!(
        unlisted.gone(Ticks(2), MS, &modules, &process),
        [] as [u64; 0],
        "it is not looked at all the time"
    );
    assert_eq!(
        unlisted.gone(Ticks(1 + LOOK_MS * MS), MS, &modules, &process),
        [IMAGE],
        "listed ones are the loader's"
    );
}

#[test]
fn a_device_path_gets_its_drive_letter() {
    let units = |text: &str| -> Vec<u16> { text.encode_utf16().collect() };
    let device = |letter: u8| {
        units(match letter {
            b'C' => r"\Device\HarddiskVolume3",
            b'D' => r"\Device\HarddiskVolume33",
            b'E' => r"\??\C:\folder",
            _ => "",
        })
    };
    for (path, expected) in [
        (r"\Device\HarddiskVolume3\Windows\a.dll", r"C:\Windows\a.dll"),
        (r"\device\harddiskvolume33\ü.dll", r"D:\ü.dll"),
        (r"\Device\HarddiskVolume4\a.dll", r"\Device\HarddiskVolume4\a.dll"),
        (r"\Device\Mup\server\share\a.dll", r"\\server\share\a.dll"),
        (r"\??\C:\folder\a.dll", r"C:\folder\a.dll"),
        (r"\??\UNC\server\share\a.dll", r"\\server\share\a.dll"),
        ("", ""),
    ] {
        let found = dos_path(&units(path), device);
        assert_eq!(String::from_utf16(&found).unwrap(), expected, "{path}");
    }
}
