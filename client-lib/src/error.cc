#include "client-lib/src/error.h"

#include <string>

namespace tensorlane::client {
namespace {

thread_local std::string last_text;

}  // namespace

tl_status_t report(const Status& status) noexcept {
  if (status.ok()) return TL_OK;
  try {
    last_text = status.to_string();
  } catch (...) {
    last_text.clear();  // out of memory: the number has to do
  }
  return static_cast<tl_status_t>(status.code());
}

const char* last_error() noexcept {
  return last_text.c_str();
}

}  // namespace tensorlane::client
