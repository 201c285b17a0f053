// nlohmann-json, compiled once: each file that parses or prints JSON would otherwise compile the library for itself.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace tensorlane::json {

// What json::parse() reads a std::string and a std::string_view with.
using StringInput = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
using ViewInput = nlohmann::detail::iterator_input_adapter<const char*>;

}  // namespace tensorlane::json

// json.cc has the same without `extern`.
extern template class nlohmann::basic_json<>;
extern template class nlohmann::detail::lexer<nlohmann::json, tensorlane::json::StringInput>;
extern template class nlohmann::detail::lexer<nlohmann::json, tensorlane::json::ViewInput>;
extern template class nlohmann::detail::parser<nlohmann::json, tensorlane::json::StringInput>;
extern template class nlohmann::detail::parser<nlohmann::json, tensorlane::json::ViewInput>;
extern template class nlohmann::detail::json_sax_dom_parser<nlohmann::json>;
extern template class nlohmann::detail::json_sax_dom_callback_parser<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
