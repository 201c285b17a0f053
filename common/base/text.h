// Text of others: what may stand in a name, a log line, a label or on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorlane {

// The bytes of the UTF-8 character at the front of `text`. 0 where there is none, or where the character is one that
// steers what shows it: a control character (U+0000 to U+001F, U+007F to U+009F), a line or paragraph separator, or one
// that changes the direction of writing.
std::size_t printable_character(std::string_view text);

// Whether all of `text` is made of such characters. Names of jobs, groups and tensors are refused where they are not.
bool is_printable(std::string_view text);

// `text` with a '?' in place of every byte that is not part of such a character: for text that is shown and not
// refused.
std::string printable(std::string_view text);

// `text` as one word of a shell command that people are told to run: between '', where it holds anything but letters,
// digits and . _ / + -
std::string for_shell(std::string_view text);

}  // namespace tensorlane
