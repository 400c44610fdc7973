//! Tests with walks that are known to be right, wrong or unprovable, and the class that each must
//! get.

use super::*;
use crate::image::{ImageSearch, load_images};
use stk_schema::Ticks;
use stk_schema::event::RunState;
use stk_tests::traces::{self, Moment, TestImage, in_function};

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;
const TIME: u64 = 10_000;
/// `sub rsp, 28h` and the return address.
const FRAME: u64 = 0x30;

/// The contents of a thread's stack, and the walk of the system's unwinder.
struct Scene {
    ip: u64,
    sp: u64,
    words: Vec<u64>,
    code: Vec<u8>,
    walk: CheckWalk,
}

impl Scene {
    /// A thread in the last of `calls`, with the correct walk. All its frames have the same size.
    fn new(calls: &[u64]) -> Scene {
        let ([ip, sp], words) = traces::stack(STACK, calls);
        let mut frames = vec![(ip, sp)];
        for n in 1..words.len() as u64 * 8 / FRAME {
            frames.push((words[(n * FRAME / 8 - 1) as usize], sp + n * FRAME));
        }
        Scene {
            ip,
            sp,
            words,
            code: Vec::new(),
            walk: CheckWalk { thread: 0, time: Ticks(TIME), flags: 0, frames },
        }
    }

    /// The same, but the innermost function has released its frame and is about to execute `code`.
    fn epilogue(calls: &[u64], code: &[u8]) -> Scene {
        let mut scene = Scene::new(calls);
        scene.code = code.to_vec();
        scene.sp += FRAME - 8;
        scene.words.drain(..FRAME as usize / 8 - 1);
        scene.walk.frames[0].1 = scene.sp;
        scene
    }

    /// With the walk of a walker that takes the innermost code for the function's body: it skips
    /// the size of one more frame.
    fn taken_for_body(mut self) -> Scene {
        let at = FRAME / 8 - 1;
        self.walk.frames.truncate(1);
        self.walk.frames.push((self.words[at as usize], self.sp + FRAME));
        self
    }

    fn compare(&self) -> Comparison {
        let mut builder = traces::trace();
        let mut image = TestImage::new(r"C:\app\app.exe", 6);
        image.exports = vec![("KiUserApcDispatcher", 5)];
        image.load(&mut builder, 0, BASE);
        let thread = builder.thread(0, 1, "eins", STACK);
        let Scene { ip, sp, words, code, walk } = self;
        let state = RunState::Running;
        let moment = Moment { thread, time: TIME, ip: *ip, sp: *sp, words, code, state };
        traces::sample_with_code(&mut builder, &moment);
        builder.push(&Event::CheckWalk(CheckWalk { thread, ..walk.clone() }));
        let file = builder.finish();
        let trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let found = compare(&trace, &images, &AtomicU64::new(0));
        assert_eq!((found.samples, found.walks, found.damage.len()), (1, 1, 0));
        found
    }

    /// The class of the one difference, and the frame where it is.
    #[track_caller]
    fn differs(&self) -> (DifferenceClass, usize) {
        let found = self.compare();
        let one: Vec<_> = found.differences.into_iter().collect();
        let [(class, differences)] = &one[..] else { panic!("{one:?}") };
        assert_eq!((differences.count, differences.examples.len()), (1, 1));
        (*class, differences.examples[0].frame)
    }
}

fn calls() -> Vec<u64> {
    vec![in_function(BASE, 0), in_function(BASE, 1), in_function(BASE, 2)]
}

#[test]
fn equal_walks_are_equal() {
    let found = Scene::new(&calls()).compare();
    assert_eq!((found.equal, found.equal_frames, found.different()), (1, 5, 0));
    let found = Scene::epilogue(&calls(), &[0xc3]).compare();
    assert_eq!((found.equal, found.different()), (1, 0));
}

#[test]
fn an_epilogue_missed_by_the_system_is_proved_by_running_it() {
    // The code behind ret cannot be reached and is not read.
    assert_eq!(
        Scene::epilogue(&calls(), &[0xc3, 0x90]).taken_for_body().differs(),
        (DifferenceClass::EpilogueMissed, 1)
    );
    // jmp to the start of the function behind the next one.
    let from = TestImage::function(2) + traces::AFTER_CALL;
    let distance = (TestImage::function(4) - from - 5) as i32;
    let jump = [&[0xe9][..], &distance.to_le_bytes()].concat();
    assert_eq!(
        Scene::epilogue(&calls(), &jump).taken_for_body().differs(),
        (DifferenceClass::TailJumpMissed, 1)
    );
    // rex.W jmp rax
    let jump = [0x48, 0xff, 0xe0];
    assert_eq!(
        Scene::epilogue(&calls(), &jump).taken_for_body().differs(),
        (DifferenceClass::TailJumpMissed, 1)
    );
}

#[test]
fn a_difference_is_unexplained_if_the_system_may_be_right() {
    // The frame is released and the code returns. But the code begins with mov eax,ecx, so by these
    // bytes our walk would take it for a body.
    let scene = Scene::epilogue(&calls(), &[0x89, 0xc8, 0xc3]);
    assert_eq!(scene.differs(), (DifferenceClass::Unexplained, 1));
    // A jump within the body is not an epilogue.
    let mut scene = Scene { code: vec![0xeb, 0xf8], ..Scene::new(&calls()) };
    assert_eq!(scene.compare().equal, 1);
    scene.walk.frames[1].1 += 8;
    assert_eq!(scene.differs(), (DifferenceClass::Unexplained, 1));
}

#[test]
fn assembler_that_is_not_a_leaf_is_proved_by_running_it() {
    // Behind the functions that have unwind data: mov eax,ecx; add rsp,28h; ret
    let calls = [in_function(BASE, 0), BASE + u64::from(TestImage::function(10))];
    let mut scene = Scene::new(&calls);
    scene.code = vec![0x89, 0xc8, 0x48, 0x83, 0xc4, 0x28, 0xc3];
    assert_eq!(scene.compare().equal, 1);
    scene.walk.frames.truncate(1);
    scene.walk.frames.push((scene.words[0], scene.sp + 8));
    assert_eq!(scene.differs(), (DifferenceClass::TakenForLeaf, 1));
    // A leaf's return address of zero ends the system's walk. Any other address would be a frame.
    let mut ended = Scene { words: scene.words.clone(), ..Scene::new(&calls) };
    (ended.code, ended.walk.frames) = (scene.code.clone(), scene.walk.frames[..1].to_vec());
    assert_eq!((ended.words[0], ended.differs()), (0, (DifferenceClass::TakenForLeaf, 1)));
    ended.words[0] = 7;
    assert_eq!(ended.differs(), (DifferenceClass::Unexplained, 1));
    // If the leaf's return address could be valid, nothing is proved.
    scene.walk.frames[1].0 = in_function(BASE, 1);
    assert_eq!(scene.differs(), (DifferenceClass::Unexplained, 1));
}

#[test]
fn an_interrupted_system_call_is_walked_as_a_leaf() {
    // A stub behind the functions that have unwind data, interrupted by the function that the
    // system enters. The stub's caller is found from where it was interrupted.
    let stub = BASE + u64::from(TestImage::function(10));
    let mut scene = Scene::new(&[in_function(BASE, 0), in_function(BASE, 1), in_function(BASE, 5)]);
    scene.words.insert(FRAME as usize / 8 - 1, stub);
    scene.sp -= 8;
    scene.walk.frames[0].1 = scene.sp;
    scene.walk.frames.insert(1, (stub, scene.sp + FRAME));
    assert_eq!((scene.compare().equal, scene.compare().equal_frames), (1, 6));
    scene.walk.frames.truncate(2);
    assert_eq!(scene.differs(), (DifferenceClass::InterruptedLeaf, 2));
    // Behind any other function, our walk does not guess the stub's caller.
    let mut scene = Scene::new(&[in_function(BASE, 0), stub, in_function(BASE, 4)]);
    scene.walk.frames.truncate(2);
    assert_eq!(scene.compare().equal, 1);
}

#[test]
fn ends_of_the_systems_walk_get_their_own_classes() {
    let right = Scene::new(&calls());
    for (flag, class) in [
        (CheckWalk::FRAME_LIMIT, DifferenceClass::SystemEndedEarly),
        (CheckWalk::FAULT, DifferenceClass::SystemEndedEarly),
        (0, DifferenceClass::Unexplained),
    ] {
        let mut scene = Scene::new(&calls());
        scene.walk.flags = flag;
        scene.walk.frames.pop();
        assert_eq!(scene.differs(), (class, right.walk.frames.len() - 1));
    }
    let mut scene = Scene::new(&calls());
    scene.walk.frames.push((0x1234, STACK));
    assert_eq!(scene.differs(), (DifferenceClass::PastThreadStart, right.walk.frames.len()));
}

#[test]
fn a_frame_with_another_stack_pointer_is_unexplained() {
    for at in [0, 2] {
        let mut scene = Scene::new(&calls());
        scene.walk.frames[at].1 += 8;
        assert_eq!(scene.differs(), (DifferenceClass::Unexplained, at));
    }
}

#[test]
fn dynamic_code_and_unknown_code_have_different_classes() {
    const JIT: u64 = 0x2222_0000;
    let calls = [in_function(BASE, 0), JIT, in_function(BASE, 2)];
    assert_eq!(Scene::new(&calls).differs(), (DifferenceClass::DynamicCode, 1));
    let mut scene = Scene::new(&calls);
    scene.walk.frames.truncate(2);
    assert_eq!(scene.differs(), (DifferenceClass::NoModule, 1));
    // The dynamic code is the innermost: by our rule a leaf, but the system knows a frame.
    let calls = [in_function(BASE, 0), JIT];
    assert_eq!(Scene::new(&calls).differs(), (DifferenceClass::DynamicCode, 1));
}

#[test]
fn a_call_at_the_end_of_its_function_belongs_to_it() {
    // The return address is that of function 2, which has no frame yet at its first instruction.
    let calls = [in_function(BASE, 0), BASE + u64::from(TestImage::function(2)), in_function(BASE, 3)];
    assert_eq!(Scene::new(&calls).compare().equal, 1);
    let mut scene = Scene::new(&calls);
    let sp = scene.walk.frames[1].1;
    let top = scene.words[(sp - scene.sp) as usize / 8];
    scene.walk.frames.truncate(2);
    scene.walk.frames.push((top, sp + 8));
    assert_eq!(scene.differs(), (DifferenceClass::LookedBehindCall, 2));
}

#[test]
fn discarded_walks_and_those_without_a_sample_are_counted() {
    let mut scene = Scene::new(&calls());
    scene.walk.flags = CheckWalk::DISCARDED;
    scene.walk.frames.clear();
    let found = scene.compare();
    assert_eq!((found.discarded, found.equal, found.different(), found.unmatched), (1, 0, 0, 0));
    let mut scene = Scene::new(&calls());
    scene.walk.time += Ticks(1);
    let found = scene.compare();
    assert_eq!((found.unmatched, found.equal, found.different()), (1, 0, 0));
}
