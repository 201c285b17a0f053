#include "daemon/transport/local/record.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

namespace tensorlane::local {
namespace {

struct Front {
  std::uint32_t payload;
  std::uint32_t reserved;
  std::uint64_t address;
};
static_assert(sizeof(Front) + protocol::kFrameHeaderBytes == kRecordBytes);

}  // namespace

void encode_record(const Record& record, RecordBytes& out) {
  const Front front{static_cast<std::uint32_t>(record.payload), 0, record.address};
  std::memcpy(out.data(), &front, sizeof front);
  protocol::encode_frame(record.header, std::span(out).last<protocol::kFrameHeaderBytes>());
}

Result<Record> decode_record(const RecordBytes& in) {
  Front front{};
  std::memcpy(&front, in.data(), sizeof front);
  Record record;
  TL_ASSIGN_OR_RETURN(record.header, protocol::decode_frame(std::span(in).last<protocol::kFrameHeaderBytes>()));
  record.payload = static_cast<Record::Payload>(front.payload);
  record.address = front.address;
  const bool behind = record.payload == Record::Payload::kBehind && front.address == 0;
  const bool stays = record.payload == Record::Payload::kStays && record.header.payload_bytes >= kStayBytes;
  if ((!behind && !stays) || front.reserved != 0) {
    return Status(Code::kCorrupt,
                  fmt::format("record of kind {} with address {:#x} for a payload of {} bytes", front.payload,
                              front.address, record.header.payload_bytes),
                  {}, "install the same tensorlane version on every host");
  }
  return record;
}

}  // namespace tensorlane::local
