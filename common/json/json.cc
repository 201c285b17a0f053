#include "common/json/json.h"

template class nlohmann::basic_json<>;
template class nlohmann::detail::lexer<nlohmann::json, tensorlane::json::StringInput>;
template class nlohmann::detail::lexer<nlohmann::json, tensorlane::json::ViewInput>;
template class nlohmann::detail::parser<nlohmann::json, tensorlane::json::StringInput>;
template class nlohmann::detail::parser<nlohmann::json, tensorlane::json::ViewInput>;
template class nlohmann::detail::json_sax_dom_parser<nlohmann::json>;
template class nlohmann::detail::json_sax_dom_callback_parser<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::json>;
