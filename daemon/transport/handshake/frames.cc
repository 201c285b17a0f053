#include "daemon/transport/handshake/frames.h"

#include <fmt/format.h>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::handshake {

protocol::FrameHeader outgoing_header(const ports::Outgoing& operation, const ports::FlowKey& flow, const Job& job,
                                      bool payload_crc) {
  protocol::FrameHeader header = operation.header;
  header.cls = flow.cls;
  header.job = job.id();
  header.epoch = job.epoch();
  header.payload_bytes = static_cast<std::uint32_t>(operation.payload.size());
  header.flags &= static_cast<std::uint8_t>(~protocol::kFlagPayloadCrc);
  header.payload_crc = 0;
  if (payload_crc && !operation.payload.empty()) {
    header.flags |= protocol::kFlagPayloadCrc;
    header.payload_crc = protocol::crc32c(operation.payload);
  }
  return header;
}

std::string foreign_frame(const protocol::FrameHeader& header, const ports::FlowKey& flow, const Job& job) {
  if (header.job != flow.job)
    return fmt::format("a frame of job {:#018x}, expected {:#018x}", header.job.value, flow.job.value);
  if (header.epoch != job.epoch())
    return fmt::format("a frame of epoch {}, expected {}", header.epoch.value, job.epoch().value);
  if (header.cls != flow.cls)
    return fmt::format("a frame of class {}, expected {}", class_name(header.cls), class_name(flow.cls));
  return {};
}

std::string wrong_crc(const protocol::FrameHeader& header, std::uint32_t computed) {
  if ((header.flags & protocol::kFlagPayloadCrc) == 0 || computed == header.payload_crc) return {};
  return fmt::format("a payload of {} bytes with CRC {:#010x}, computed {:#010x}", header.payload_bytes,
                     header.payload_crc, computed);
}

}  // namespace tensorlane::handshake
