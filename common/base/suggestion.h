// What somebody may have meant by a word that is not known.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tensorlane {

// "did you mean 'dscp'? " when one of `known` is close to `word`, else "".
std::string suggestion(std::string_view word, std::span<const std::string_view> known);

}  // namespace tensorlane
