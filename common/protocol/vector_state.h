// What a library leaves behind in the processor's vector registers.
#pragma once

namespace tensorlane::protocol {

// Code that has used the 256 or 512 bits of x86's vector registers should clear what is above the lower 128. Where it
// does not, as ISA-L's CRC of some hundred bytes and more, SSE instructions that come after it wait for each other:
// libsodium's AES takes 1.4 to 2.4 times as long, in this thread, until somebody clears them. A cycle or two.
// Never inlined: the compiler knows of a call that vector registers do not outlive it.
[[gnu::noinline]] void clear_upper_halves();

}  // namespace tensorlane::protocol
