//! inject.exe: see the library `stk_inject`.
fn main() {
    std::process::exit(stk_inject::main());
}
